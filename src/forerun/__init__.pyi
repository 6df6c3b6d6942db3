from forerun.config import SpeculationConfig as SpeculationConfig
from forerun.errors import ForerunError as ForerunError
from forerun.errors import RequestError as RequestError
from forerun.llm import LLM as LLM
from forerun.llm import EngineOptions as EngineOptions
from forerun.results import Choice as Choice
from forerun.results import Generation as Generation
from forerun.results import StreamChunk as StreamChunk
from forerun.sequence import FinishReason as FinishReason
from forerun.sequence import SamplingParams as SamplingParams
from forerun.sequence import TokenLogprob as TokenLogprob

__version__: str

from forerun.config import SpeculationConfig as SpeculationConfig
from forerun.errors import ForerunError as ForerunError
from forerun.errors import RequestError as RequestError
from forerun.generation import Choice as Choice
from forerun.generation import Generation as Generation
from forerun.generation import StreamChunk as StreamChunk
from forerun.llm import LLM as LLM
from forerun.llm import EngineOptions as EngineOptions
from forerun.sequence import FinishReason as FinishReason
from forerun.sequence import SamplingParams as SamplingParams
from forerun.sequence import TokenLogprob as TokenLogprob

__version__: str

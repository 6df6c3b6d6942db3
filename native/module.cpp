// The Python module forerun._native. Each part of the native core binds itself; this file only lists them.
#include <nanobind/nanobind.h>

#ifdef FORERUN_HAS_DRAW
#include "draw.h"
#endif

NB_MODULE(_native, m) {
    m.doc() = "Native core of forerun: kernels, their memory, and the program replayer.";
#ifdef FORERUN_HAS_DRAW
    bind_draw(m);
#endif
}

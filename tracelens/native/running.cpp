// What runs at each time, as analysis.host.idle._running says it.
#include "core.h"

#include <vector>

namespace core {

PyObject *running(PyObject *, PyObject *args) {
    Array<const std::int64_t> start, end, time;
    Array<std::int64_t> result;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", start.convert, &start, end.convert, &end, time.convert, &time,
                          result.convert, &result))
        return nullptr;
    if (end.size() != start.size())
        return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", start.size(), end.size());
    if (result.size() != time.size())
        return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", time.size(), result.size());

    const bool done = unlocked([&] {
        // What has begun and not ended, but for what has ended below something that goes on.
        std::vector<std::int64_t> open;
        std::size_t next = 0;
        for (std::size_t moment = 0; moment < time.size(); ++moment) {
            for (; next < start.size() && start[next] <= time[moment]; ++next)
                open.push_back(static_cast<std::int64_t>(next));
            while (!open.empty() && end[open.back()] <= time[moment]) open.pop_back();
            result[moment] = open.empty() ? -1 : open.back();
        }
    });
    if (!done) return nullptr;
    Py_RETURN_NONE;
}

}  // namespace core

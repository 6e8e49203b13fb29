// The ends of a replayed segment's rows, as what_if.replay.schedule says it.
#include "core.h"

#include <algorithm>

namespace core {

PyObject *replay(PyObject *, PyObject *args) {
    Array<const std::int64_t> first, first_lag, second, second_lag, more, ready, recorded;
    Array<std::int64_t> ends;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&O&O&", first.convert, &first, first_lag.convert, &first_lag,
                          second.convert, &second, second_lag.convert, &second_lag, more.convert, &more,
                          ready.convert, &ready, recorded.convert, &recorded, ends.convert, &ends))
        return nullptr;
    const std::size_t rows = first.size();
    for (std::size_t size : {first_lag.size(), second.size(), second_lag.size(), more.size(), ready.size(),
                             recorded.size()})
        if (size != rows) return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", rows, size);
    if (ends.size() < rows) return PyErr_Format(PyExc_ValueError, "%zu ends of %zu rows", ends.size(), rows);

    bool is_ordered = true;
    const bool done = unlocked([&] {
        std::size_t position = ends.size() - rows;
        for (std::size_t row = 0; row < rows; ++row, ++position) {
            // A negative position is beyond all others when it has no sign.
            const auto source = static_cast<std::size_t>(first[row]);
            const auto other = static_cast<std::size_t>(second[row]);
            if (source >= position || other >= position) {
                is_ordered = false;
                return;
            }
            const std::int64_t allowed = std::max(ends[source] + first_lag[row], ends[other] + second_lag[row]);
            const std::int64_t end = allowed + more[row];
            ends[position] = end < recorded[row] && allowed >= ready[row] ? recorded[row] : end;
        }
    });
    if (!done) return nullptr;
    if (!is_ordered) return PyErr_Format(PyExc_ValueError, "a row waits for one that is not before it");
    Py_RETURN_NONE;
}

}  // namespace core

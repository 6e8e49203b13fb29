// Parents of events by containment, as trace.links.nest says it.
#include "core.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace core {

PyObject *nest(PyObject *, PyObject *args) {
    Array<const std::int64_t> thread, start, end, rank;
    Array<std::int64_t> parent, depth;
    long long tolerance = 0;
    if (!PyArg_ParseTuple(args, "O&O&O&O&LO&O&", thread.convert, &thread, start.convert, &start, end.convert,
                          &end, rank.convert, &rank, &tolerance, parent.convert, &parent, depth.convert,
                          &depth))
        return nullptr;
    const std::size_t count = thread.size();
    for (std::size_t size : {start.size(), end.size(), rank.size(), parent.size(), depth.size()})
        if (size != count) return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", count, size);

    const bool done = unlocked([&] {
        std::vector<std::int64_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            if (thread[a] != thread[b]) return thread[a] < thread[b];
            if (start[a] != start[b]) return start[a] < start[b];
            if (end[a] != end[b]) return end[a] > end[b];
            if (rank[a] != rank[b]) return rank[a] < rank[b];
            return a < b;
        });
        // The events around the last one, seen from the inside: its parent, the parent of that, and so on.
        std::int64_t before = -1;
        for (const std::int64_t row : order) {
            std::int64_t around = before;
            if (around >= 0 && thread[around] != thread[row]) around = -1;
            for (; around >= 0; around = parent[around]) {
                // An event without extent at its parent's very end still belongs to it.
                const bool is_open =
                    end[around] > start[row] || (end[around] == start[row] && start[row] == end[row]);
                if (is_open && end[row] <= end[around] + tolerance) break;
            }
            parent[row] = around;
            depth[row] = around < 0 ? 0 : depth[around] + 1;
            before = row;
        }
    });
    if (!done) return nullptr;
    Py_RETURN_NONE;
}

}  // namespace core

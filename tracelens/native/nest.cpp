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
        const auto is_before = [&](std::int64_t a, std::int64_t b) {
            if (thread[a] != thread[b]) return thread[a] < thread[b];
            if (start[a] != start[b]) return start[a] < start[b];
            if (end[a] != end[b]) return end[a] > end[b];
            if (rank[a] != rank[b]) return rank[a] < rank[b];
            return a < b;
        };
        // Profilers write long runs in order: they are found, and merged two by two.
        std::vector<std::size_t> borders{0};
        for (std::size_t row = 1; row < count; ++row)
            if (is_before(order[row], order[row - 1])) borders.push_back(row);
        borders.push_back(count);
        while (borders.size() > 2) {
            std::size_t kept = 1;
            for (std::size_t run = 0; run + 1 < borders.size(); run += 2) {
                const std::size_t end = std::min(run + 2, borders.size() - 1);
                const auto at = [&](std::size_t border) {
                    return order.begin() + static_cast<std::ptrdiff_t>(borders[border]);
                };
                std::inplace_merge(at(run), at(run + 1), at(end), is_before);
                borders[kept++] = borders[end];
            }
            borders.resize(kept);
        }
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

// Events of a JSON trace to columns, in one walk over the text.
//
// What is taken here is taken exactly as read.json.events and read.json.columns take it. A chunk with anything
// that they might see differently (no valid JSON, a repeated key, a number of another type, a time that floats
// round) is refused as a whole: Python decodes it. Being too strict costs time, being too lax would be wrong.
#include "core.h"

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace core {
namespace {

struct Refused {};  // thrown where Python has to look at the chunk

constexpr int DEEPEST = 100;  // of nested values; msgspec allows as many as Python's stack does
constexpr std::int64_t LARGEST_COUNT = std::int64_t{1} << 53;  // limits.LARGEST_COUNT
constexpr std::int64_t MISSING = INT64_MIN;                    // events.MISSING
constexpr std::int64_t LARGEST_NS = std::int64_t{1} << 62;     // beyond, events.exact_ns gives MISSING
constexpr double EXACT_BELOW_US = 8796093022208.0;             // events.EXACT_BELOW_US

enum class Kind : std::uint8_t { String, Integer, Float, Null, Boolean, Object, Array };

// A value as it stands in the text, with the quotes of a string.
struct Token {
    const char *begin = nullptr;
    const char *end = nullptr;
    Kind kind = Kind::Null;
    bool has_escape = false;

    std::string_view text() const { return {begin, static_cast<std::size_t>(end - begin)}; }
};

// Fields of an event, and of its arguments; in the order of their names below.
enum Field : unsigned { PH, CAT, NAME, TS, DUR, PID, TID, ID, ARGS, FIELDS };
constexpr std::string_view FIELD_NAMES[] = {"ph", "cat", "name", "ts", "dur", "pid", "tid", "id", "args"};

enum Argument : unsigned {
    CORRELATION, EXTERNAL_ID, STREAM, DEVICE, BYTES, ALLOCATED, DEVICE_TYPE, SEQUENCE, FORWARD_THREAD,
    IN_ELEMENTS, OUT_ELEMENTS, GROUP_SIZE, SOURCE_RANK, DESTINATION_RANK, RANK_IN_GROUP, NUMBERS,
    COLLECTIVE = NUMBERS, GRID, KERNEL, DIMS, TYPES, STRIDES, VALUES, ARGUMENTS
};  // fields of other names are read by nobody, or of few events, which Python decodes as well
constexpr std::string_view ARGUMENT_NAMES[] = {
    "correlation", "External id", "stream", "device", "bytes", "Total Allocated", "Device Type",
    "Sequence number", "Fwd thread id", "In msg nelems", "Out msg nelems", "Group size", "Src Rank",
    "Dst Rank", "Rank", "Collective name", "grid", "kernel", "Input Dims", "Input type", "Input Strides",
    "Concrete Inputs",
};

// Names to numbers, by length and outer letters.
class Names {
  public:
    template <std::size_t COUNT>
    explicit Names(const std::string_view (&names)[COUNT]) : names_(names) {
        std::memset(slots_, NONE, sizeof slots_);
        for (std::size_t number = 0; number < COUNT; ++number) {
            std::size_t slot = hash(names[number]);
            while (slots_[slot] != NONE) slot = (slot + 1) % SLOTS;
            slots_[slot] = static_cast<std::uint8_t>(number);
        }
    }

    static constexpr std::uint8_t NONE = 255;

    unsigned find(std::string_view name) const {
        if (name.empty()) return NONE;
        for (std::size_t slot = hash(name);; slot = (slot + 1) % SLOTS) {
            const std::uint8_t number = slots_[slot];
            if (number == NONE || names_[number] == name) return number;
        }
    }

  private:
    static constexpr std::size_t SLOTS = 256;

    static std::size_t hash(std::string_view name) {
        const auto first = static_cast<unsigned char>(name.front());
        const auto last = static_cast<unsigned char>(name.back());
        return (name.size() * 31 + first * 7 + last * 3) % SLOTS;
    }

    const std::string_view *names_;
    std::uint8_t slots_[SLOTS];
};

// Distinct texts, numbered in order of first use.
class Codes {
  public:
    explicit Codes(std::uint64_t seed) : seed_(seed), slots_(64, EMPTY) {}

    std::int32_t code(std::string_view text) {
        if (size() && text == at(last_)) return last_;
        const std::uint64_t hash = this->hash(text);
        std::size_t slot = hash & (slots_.size() - 1);
        for (; slots_[slot] != EMPTY; slot = (slot + 1) & (slots_.size() - 1)) {
            const std::int32_t code = slots_[slot];
            if (hashes_[code] == hash && at(code) == text) return last_ = code;
        }
        if (size() == INT32_MAX) throw Refused();
        last_ = static_cast<std::int32_t>(size());
        texts_.append(text);
        ends_.push_back(texts_.size());
        hashes_.push_back(hash);
        slots_[slot] = last_;
        if (2 * size() > slots_.size()) rehash(2 * slots_.size());
        return last_;
    }

    std::size_t size() const { return hashes_.size(); }

    std::string_view at(std::size_t code) const {
        const std::size_t begin = code ? ends_[code - 1] : 0;
        return {texts_.data() + begin, ends_[code] - begin};
    }

    // Forget all but the first `count`.
    void cut(std::size_t count) {
        if (count == size()) return;
        hashes_.resize(count);
        ends_.resize(count);
        texts_.resize(count ? ends_.back() : 0);
        last_ = 0;
        rehash(slots_.size());
    }

  private:
    static constexpr std::int32_t EMPTY = -1;

    static std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
        const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }

    std::uint64_t hash(std::string_view text) const {
        std::uint64_t hash = seed_ ^ text.size(), word = 0;
        const char *pos = text.data(), *end = pos + text.size();
        for (; end - pos >= 8; pos += 8) {
            std::memcpy(&word, pos, 8);
            hash = mixed(hash ^ word, 0x9e3779b97f4a7c15);
        }
        word = 0;
        std::memcpy(&word, pos, static_cast<std::size_t>(end - pos));
        return mixed(hash ^ word ^ 0xa0761d6478bd642f, 0xe7037ed1a0b428db ^ seed_);
    }

    void rehash(std::size_t count) {
        slots_.assign(count, EMPTY);
        for (std::size_t code = 0; code < size(); ++code) {
            std::size_t slot = hashes_[code] & (count - 1);
            while (slots_[slot] != EMPTY) slot = (slot + 1) & (count - 1);
            slots_[slot] = static_cast<std::int32_t>(code);
        }
    }

    std::uint64_t seed_;
    std::int32_t last_ = 0;
    std::vector<std::int32_t> slots_;
    std::vector<std::uint64_t> hashes_;
    std::vector<std::size_t> ends_;
    std::string texts_;
};

// The bytes of eight that end a run of plain characters in a string, as their highest bits; the lowest is right.
std::uint64_t stops(std::uint64_t word) {
    constexpr std::uint64_t ONES = 0x0101010101010101, HIGH = 0x8080808080808080;
    const std::uint64_t quote = word ^ (ONES * '"'), backslash = word ^ (ONES * '\\');
    return (((quote - ONES) & ~quote) | ((backslash - ONES) & ~backslash) | ((word - ONES * 0x20) & ~word) | word) &
           HIGH;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A walk over valid JSON that ends with a NUL, which is no part of any.
class Walk {
  public:
    Walk(const char *begin, const char *end) : pos(begin), end_(end) {}

    const char *pos;

    void blanks() {
        while (*pos == ' ' || *pos == '\n' || *pos == '\t' || *pos == '\r') ++pos;
    }

    void expect(char c) {
        if (*pos != c) throw Refused();
        ++pos;
    }

    // Whether a list or object goes on behind a value; else it ends with `close`.
    bool goes_on(char close) {
        blanks();
        if (*pos == ',') {
            ++pos;
            blanks();
            return true;
        }
        expect(close);
        return false;
    }

    Token value(int depth) {
        Token token;
        token.begin = pos;
        switch (*pos) {
            case '"':
                token.kind = Kind::String;
                token.has_escape = string();
                break;
            case '{':
            case '[':
                token.kind = *pos == '{' ? Kind::Object : Kind::Array;
                nested(depth);
                break;
            case 't': word("true"), token.kind = Kind::Boolean; break;
            case 'f': word("false"), token.kind = Kind::Boolean; break;
            case 'n': word("null"), token.kind = Kind::Null; break;
            default: token.kind = number();
        }
        token.end = pos;
        return token;
    }

    std::string_view key() {
        const char *begin = pos + 1;
        if (*pos != '"' || string()) throw Refused();
        const std::string_view key(begin, static_cast<std::size_t>(pos - 1 - begin));
        blanks();
        expect(':');
        blanks();
        return key;
    }

  private:
    const char *end_;

    void nested(int depth) {
        const char close = *pos == '{' ? '}' : ']';
        if (depth >= DEEPEST) throw Refused();
        ++pos;
        blanks();
        if (*pos == close) {
            ++pos;
            return;
        }
        do {
            if (close == '}') {
                if (*pos != '"') throw Refused();
                string();
                blanks();
                expect(':');
                blanks();
            }
            value(depth + 1);
        } while (goes_on(close));
    }

    // Walks over a string; whether it has an escape.
    bool string() {
        bool has_escape = false;
        ++pos;
        for (;;) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            while (end_ - pos >= 8) {
                std::uint64_t word;
                std::memcpy(&word, pos, 8);
                if (const std::uint64_t stop = stops(word)) {
                    pos += __builtin_ctzll(stop) / 8;
                    break;
                }
                pos += 8;
            }
#endif
            const auto c = static_cast<unsigned char>(*pos);
            if (c == '"') {
                ++pos;
                return has_escape;
            }
            if (c < 0x20) throw Refused();
            if (c == '\\') {
                has_escape = true;
                escape();
            } else if (c < 0x80) {
                ++pos;
            } else {
                character();
            }
        }
    }

    void escape() {
        const char kind = *++pos;
        if (kind == '\0' || std::strchr("\"\\/bfnrtu", kind) == nullptr) throw Refused();
        ++pos;
        if (kind != 'u') return;
        unsigned code = 0;
        for (int digit = 0; digit < 4; ++digit, ++pos) {
            const char c = *pos;
            const int value = is_digit(c)             ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (value < 0) throw Refused();
            code = code * 16 + static_cast<unsigned>(value);
        }
        if (code >= 0xd800 && code < 0xe000) throw Refused();  // one of a pair, or half of one
    }

    // A character of several bytes, in UTF-8.
    void character() {
        const auto byte = [this](int at) { return static_cast<unsigned char>(pos[at]); };
        const unsigned first = byte(0);
        const int more = first < 0xc2 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : first < 0xf5 ? 3 : 0;
        const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (!more || byte(1) < low || byte(1) > high) throw Refused();
        for (int at = 2; at <= more; ++at)
            if ((byte(at) & 0xc0) != 0x80) throw Refused();
        pos += 1 + more;
    }

    void word(const char *text) {
        for (; *text; ++text) expect(*text);
    }

    void digits() {
        if (!is_digit(*pos)) throw Refused();
        while (is_digit(*pos)) ++pos;
    }

    Kind number() {
        Kind kind = Kind::Integer;
        if (*pos == '-') ++pos;
        if (*pos == '0')
            ++pos;
        else
            digits();
        if (*pos == '.') {
            kind = Kind::Float;
            ++pos;
            digits();
        }
        if (*pos == 'e' || *pos == 'E') {
            kind = Kind::Float;
            ++pos;
            if (*pos == '+' || *pos == '-') ++pos;
            digits();
        }
        return kind;
    }
};

// A count, a size or an id that lies within LARGEST_COUNT.
std::int64_t integer(const Token &token) {
    const char *pos = token.begin;
    const bool is_negative = *pos == '-';
    pos += is_negative;
    if (token.kind != Kind::Integer || token.end - pos > 16) throw Refused();
    std::int64_t value = 0;
    for (; pos < token.end; ++pos) value = 10 * value + (*pos - '0');
    if (value > LARGEST_COUNT) throw Refused();
    return is_negative ? -value : value;
}

// Times of one kind in a chunk, read as `events.nanoseconds` reads them: from text, or as floats.
struct Times {
    bool is_large = false, is_huge = false, is_float = false, is_rounded = false;

    std::int64_t ns(const Token &token) {
        if (token.kind == Kind::Null) return MISSING;
        if (token.kind != Kind::Integer && token.kind != Kind::Float) throw Refused();
        const char *pos = token.begin;
        const bool is_negative = *pos == '-';
        pos += is_negative;
        std::int64_t whole = 0, fraction = 0;
        const char *point = pos;
        while (point < token.end && is_digit(*point)) ++point;
        if (point - pos > 16) throw Refused();
        for (; pos < point; ++pos) whole = 10 * whole + (*pos - '0');
        is_large |= static_cast<double>(whole) + 1 >= EXACT_BELOW_US;
        is_huge |= whole >= LARGEST_COUNT;
        is_float |= token.kind == Kind::Float;
        if (pos < token.end) ++pos;
        const auto places = token.end - pos;
        if (pos < token.end && *point != '.') throw Refused();
        if (places > 3) return rounded(token, whole, pos, is_negative);
        for (; pos < token.end; ++pos) {
            if (!is_digit(*pos)) throw Refused();  // an exponent
            fraction = 10 * fraction + (*pos - '0');
        }
        for (auto place = places; place < 3; ++place) fraction *= 10;
        if (whole >= LARGEST_NS / 1000) throw Refused();
        const std::int64_t ns = 1000 * whole + fraction;
        return is_negative ? -ns : ns;
    }

    // Whether Python would have read the text of what was rounded here.
    bool is_exact() const { return (is_large && is_float) || is_huge; }

  private:
    // More than three decimals, of a number so short that its division is the nearest double.
    std::int64_t rounded(const Token &token, std::int64_t digits, const char *pos, bool is_negative) {
        static constexpr double POWERS[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                            1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
        const auto places = token.end - pos;
        if (places > 15) throw Refused();
        for (; pos < token.end; ++pos) {
            if (!is_digit(*pos) || digits >= LARGEST_COUNT / 10) throw Refused();
            digits = 10 * digits + (*pos - '0');
        }
        is_rounded = true;
        const double us = (is_negative ? -1.0 : 1.0) * static_cast<double>(digits) / POWERS[places];
        const double whole = std::floor(us), fraction = us - whole;
        return static_cast<std::int64_t>(whole) * 1000 + static_cast<std::int64_t>(std::nearbyint(fraction * 1000));
    }
};

using Numbers = std::vector<std::int64_t>;
using CodeColumn = std::vector<std::int32_t>;

// Rows of one chunk: columns.Columns and columns.OpRows, and what Python decodes as well.
struct Rows {
    CodeColumn phase, category, name, pid, tid, kernel, grid, blob;
    Numbers ts, dur, correlation, external_id, stream, device, bytes, op, sequence, forward_thread;
    Numbers special;  // row, begin and end of each event of which more is needed
    std::int64_t bare = 0, other = 0;  // events without a phase, and of one that is not analyzed

    // Room for as many events and ops as another chunk had.
    void reserve(std::size_t events, std::size_t ops) {
        for (CodeColumn *column : {&phase, &category, &name, &pid, &tid, &kernel, &grid}) column->reserve(events);
        for (Numbers *column : {&ts, &dur, &correlation, &external_id, &stream, &device, &bytes})
            column->reserve(events);
        blob.reserve(ops);
        for (Numbers *column : {&op, &sequence, &forward_thread}) column->reserve(ops);
    }
};

class Scanner {
  public:
    explicit Scanner(std::uint64_t seed)
        : phases(seed), categories(seed), names(seed), pids(seed), tids(seed), kernels(seed), grids(seed),
          dims(seed), types(seed), strides(seed), values(seed), blobs(seed) {
        kernels.code("");
        grids.code("");
    }

    Codes phases, categories, names, pids, tids, kernels, grids, dims, types, strides, values;
    Codes blobs;  // the four codes of an op's arguments

    // Whether the chunk was taken; if not, the dictionaries are as before.
    bool scan(const char *begin, const char *end, Rows &rows) {
        Codes *const all[] = {&phases, &categories, &names, &pids,    &tids,   &kernels,
                              &grids,  &dims,       &types, &strides, &values, &blobs};
        constexpr int COUNT = sizeof all / sizeof *all;
        std::size_t sizes[COUNT];
        for (int number = 0; number < COUNT; ++number) sizes[number] = all[number]->size();
        rows.reserve(events_, ops_);
        try {
            array(begin, end, rows);
            events_ = rows.phase.size() + rows.phase.size() / 8;
            ops_ = rows.op.size() + rows.op.size() / 8;
            return true;
        } catch (const Refused &) {
            for (int number = 0; number < COUNT; ++number) all[number]->cut(sizes[number]);
            return false;
        }
    }

  private:
    Token fields_[FIELDS], arguments_[ARGUMENTS];
    std::uint32_t has_ = 0, has_argument_ = 0;
    std::size_t events_ = 0, ops_ = 0;  // a little more than the last chunk had
    Times starts_, durations_;

    bool has(Field field) const { return has_ >> field & 1; }
    bool has(Argument argument) const { return has_argument_ >> argument & 1; }

    void array(const char *begin, const char *end, Rows &rows) {
        starts_ = durations_ = Times();
        Walk walk(begin, end);
        walk.expect('[');
        walk.blanks();
        if (*walk.pos == ']') {
            ++walk.pos;
        } else {
            do {
                const char *start = walk.pos;
                event(walk);
                row(rows, start - begin, walk.pos - begin);
            } while (walk.goes_on(']'));
        }
        walk.blanks();
        if (walk.pos != end) throw Refused();
        // Where one kind of time needs its text, Python reads both from it.
        if ((starts_.is_exact() || durations_.is_exact()) && (starts_.is_rounded || durations_.is_rounded))
            throw Refused();
    }

    void event(Walk &walk) {
        static const Names names(FIELD_NAMES);
        has_ = has_argument_ = 0;
        walk.expect('{');
        walk.blanks();
        if (*walk.pos == '}') {
            ++walk.pos;
            return;
        }
        do {
            const unsigned field = names.find(walk.key());
            if (field == Names::NONE) {
                walk.value(2);
                continue;
            }
            if (has(static_cast<Field>(field))) throw Refused();
            has_ |= 1u << field;
            if (field == ARGS && *walk.pos == '{')
                arguments(walk);
            else
                fields_[field] = walk.value(2);
        } while (walk.goes_on('}'));
    }

    void arguments(Walk &walk) {
        static const Names names(ARGUMENT_NAMES);
        fields_[ARGS].kind = Kind::Object;
        ++walk.pos;
        walk.blanks();
        if (*walk.pos == '}') {
            ++walk.pos;
            return;
        }
        do {
            const unsigned argument = names.find(walk.key());
            const Token token = walk.value(3);
            if (argument == Names::NONE) continue;
            if (has(static_cast<Argument>(argument))) throw Refused();
            has_argument_ |= 1u << argument;
            arguments_[argument] = token;
        } while (walk.goes_on('}'));
    }

    std::string_view text(Field field, std::string_view absent) const {
        return has(field) ? fields_[field].text() : absent;
    }

    std::string_view text(Argument argument) const {
        return has(argument) ? arguments_[argument].text() : std::string_view();
    }

    std::int64_t number(Argument argument) const {
        return has(argument) ? integer(arguments_[argument]) : -1;
    }

    // Refuses what does not fit the types of events.Event and events.Args.
    void check_types() const {
        const auto refuse = [](bool wrong) {
            if (wrong) throw Refused();
        };
        const auto is_text = [](const Token &token) { return token.kind == Kind::String || token.kind == Kind::Null; };
        const auto is_number = [&](const Token &token) {
            return is_text(token) || (token.kind == Kind::Integer && token.end - token.begin <= 18);
        };
        refuse(has(PH) && (fields_[PH].kind != Kind::String || fields_[PH].has_escape));
        for (Field field : {CAT, NAME}) refuse(has(field) && !is_text(fields_[field]));
        for (Field field : {PID, TID, ID}) refuse(has(field) && !is_number(fields_[field]));
        refuse(has(ARGS) && fields_[ARGS].kind != Kind::Object && fields_[ARGS].kind != Kind::Null);
        for (unsigned argument = 0; argument < NUMBERS; ++argument)
            refuse((has_argument_ >> argument & 1) && !is_number(arguments_[argument]));
        refuse(has(COLLECTIVE) && !is_text(arguments_[COLLECTIVE]));
    }

    void row(Rows &rows, std::int64_t begin, std::int64_t end) {
        check_types();
        const std::int64_t ts = has(TS) ? starts_.ns(fields_[TS]) : MISSING;
        const std::int64_t dur = has(DUR) ? durations_.ns(fields_[DUR]) : MISSING;
        const std::string_view phase = text(PH, "\"\"");
        if (phase.size() == 2) {
            ++rows.bare;
            return;
        }
        if (phase.size() != 3 || std::strchr("XiIRBEbesftM", phase[1]) == nullptr) {
            ++rows.other;
            return;
        }
        const auto number_of_row = static_cast<std::int64_t>(rows.phase.size());
        const bool is_collective = has(COLLECTIVE) && arguments_[COLLECTIVE].kind == Kind::String;
        if (is_collective || phase[1] == 'M' || phase[1] == 'b' || phase[1] == 'e')
            rows.special.insert(rows.special.end(), {number_of_row, begin, end});
        rows.phase.push_back(phases.code(phase));
        rows.category.push_back(categories.code(text(CAT, "\"\"")));
        rows.name.push_back(names.code(text(NAME, "\"\"")));
        rows.pid.push_back(pids.code(text(PID, "-1")));
        rows.tid.push_back(tids.code(text(TID, "-1")));
        rows.ts.push_back(ts);
        rows.dur.push_back(dur);
        rows.external_id.push_back(number(EXTERNAL_ID));
        const std::int64_t sequence = number(SEQUENCE);
        if (has(DIMS) || sequence != -1) {
            rows.op.push_back(number_of_row);
            rows.sequence.push_back(sequence);
            rows.forward_thread.push_back(number(FORWARD_THREAD));
            const std::int32_t texts[] = {dims.code(text(DIMS)), types.code(text(TYPES)),
                                          strides.code(text(STRIDES)), values.code(text(VALUES))};
            rows.blob.push_back(blobs.code({reinterpret_cast<const char *>(texts), sizeof texts}));
            for (Numbers *column : {&rows.correlation, &rows.stream, &rows.device, &rows.bytes})
                column->push_back(-1);
            rows.kernel.push_back(0);
            rows.grid.push_back(0);
            return;
        }
        const std::int64_t correlation = number(CORRELATION);
        const bool is_flow = correlation == -1 && has(ID);
        rows.correlation.push_back(is_flow ? integer(fields_[ID]) : correlation);
        rows.stream.push_back(number(STREAM));
        rows.device.push_back(number(DEVICE));
        // What a memory event says is allocated counts on a device, not on the host (type 0).
        std::int64_t size = number(ALLOCATED);
        if (size == -1)
            size = number(BYTES);
        else if (number(DEVICE_TYPE) <= 0)
            size = -1;
        rows.bytes.push_back(size < -1 ? -1 : size);
        rows.kernel.push_back(has(KERNEL) ? kernels.code(text(KERNEL)) : 0);
        rows.grid.push_back(has(GRID) ? grids.code(text(GRID)) : 0);
    }
};

template <typename T>
PyObject *as_bytes(const std::vector<T> &column) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(column.data()),
                                     static_cast<Py_ssize_t>(column.size() * sizeof(T)));
}

PyObject *as_list(const Codes &codes) {
    PyObject *list = PyList_New(static_cast<Py_ssize_t>(codes.size()));
    for (std::size_t code = 0; list != nullptr && code < codes.size(); ++code) {
        const std::string_view text = codes.at(code);
        PyObject *item = PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
        if (item == nullptr || PyList_SetItem(list, static_cast<Py_ssize_t>(code), item) < 0) Py_CLEAR(list);
    }
    return list;
}

struct Object {
    PyObject_HEAD Scanner *scanner;
};

Scanner &scanner_of(PyObject *self) { return *reinterpret_cast<Object *>(self)->scanner; }

PyObject *make(PyTypeObject *type, PyObject *args, PyObject *) {
    unsigned long long seed = 0;
    if (!PyArg_ParseTuple(args, "K", &seed)) return nullptr;
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject *self = allocate(type, 0);
    if (self == nullptr) return nullptr;
    try {
        reinterpret_cast<Object *>(self)->scanner = new Scanner(seed);
    } catch (const std::bad_alloc &) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

void release(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    delete reinterpret_cast<Object *>(self)->scanner;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject *scan(PyObject *self, PyObject *text) {
    char *begin = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(text, &begin, &size) < 0) return nullptr;
    Rows rows;
    bool is_taken = false;
    if (!unlocked([&] { is_taken = scanner_of(self).scan(begin, begin + size, rows); })) return nullptr;
    if (!is_taken) Py_RETURN_NONE;
    return Py_BuildValue(
        "(NNNNNNNNNNNNNNNNNNNLL)", as_bytes(rows.phase), as_bytes(rows.category), as_bytes(rows.name),
        as_bytes(rows.pid), as_bytes(rows.tid), as_bytes(rows.ts), as_bytes(rows.dur),
        as_bytes(rows.correlation), as_bytes(rows.external_id), as_bytes(rows.stream), as_bytes(rows.device),
        as_bytes(rows.bytes), as_bytes(rows.grid), as_bytes(rows.kernel), as_bytes(rows.op),
        as_bytes(rows.blob), as_bytes(rows.sequence), as_bytes(rows.forward_thread), as_bytes(rows.special),
        static_cast<long long>(rows.bare), static_cast<long long>(rows.other));
}

PyObject *dictionaries(PyObject *self, PyObject *) {
    const Scanner &scanner = scanner_of(self);
    return Py_BuildValue("(NNNNNNNNNNNN)", as_list(scanner.phases), as_list(scanner.categories),
                         as_list(scanner.names), as_list(scanner.pids), as_list(scanner.tids),
                         as_list(scanner.kernels), as_list(scanner.grids), as_list(scanner.dims),
                         as_list(scanner.types), as_list(scanner.strides), as_list(scanner.values),
                         as_list(scanner.blobs));
}

PyMethodDef methods[] = {
    {"scan", scan, METH_O, nullptr},
    {"dictionaries", dictionaries, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(make)},
    {Py_tp_dealloc, reinterpret_cast<void *>(release)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"tracelens.native._core.Scanner", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

// Numbers codes in the order in which they appear, in place; `numbers`, -1 before, gets the new one of each.
PyObject *renumber(PyObject *, PyObject *args) {
    Array<std::int32_t> codes, numbers;
    if (!PyArg_ParseTuple(args, "O&O&", codes.convert, &codes, numbers.convert, &numbers)) return nullptr;
    bool is_within = true;
    const bool done = unlocked([&] {
        std::int32_t next = 0;
        for (std::size_t row = 0; row < codes.size(); ++row) {
            const auto code = static_cast<std::size_t>(codes[row]);
            if (code >= numbers.size()) {
                is_within = false;
                return;
            }
            if (numbers[code] < 0) numbers[code] = next++;
            codes[row] = numbers[code];
        }
    });
    if (!done) return nullptr;
    if (!is_within) return PyErr_Format(PyExc_ValueError, "a code that has no value");
    Py_RETURN_NONE;
}

PyObject *scanner_type() { return PyType_FromSpec(&spec); }

}  // namespace core

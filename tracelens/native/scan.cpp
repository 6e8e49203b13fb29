// Events of a JSON trace to columns, in one walk over the text.
//
// What is taken here is taken exactly as read.json.events and read.json.columns take it. A chunk with anything
// that they might see differently (no valid JSON, a repeated key, a number of another type, a time that floats
// round) is refused as a whole: Python decodes it. Being too strict costs time, being too lax would be wrong.
#include "core.h"

#include <cmath>
#include <cstring>
#include <initializer_list>
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
    std::int32_t code = -1;  // of its text, where that was guessed

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

std::uint64_t word(const char *pos) {
    std::uint64_t word;
    std::memcpy(&word, pos, sizeof word);
    return word;
}

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
        for (std::size_t slot = hash(name);; slot = (slot + 1) % SLOTS) {
            const std::uint8_t number = slots_[slot];
            if (number == NONE || names_[number] == name) return number;
        }
    }

    static std::size_t hash(std::string_view name) {
        if (name.empty()) return 0;
        const auto first = static_cast<unsigned char>(name.front());
        const auto last = static_cast<unsigned char>(name.back());
        return (name.size() * 31 + first * 7 + last * 3) % SLOTS;
    }

  private:
    static constexpr std::size_t SLOTS = 256;

    const std::string_view *names_;
    std::uint8_t slots_[SLOTS];
};

// Distinct texts, numbered in order of first use; and for each context the one that was last seen in it. A
// context may be anything that tells what follows: a wrong guess costs time only.
class Codes {
  public:
    explicit Codes(std::uint64_t seed) : seed_(seed), slots_(64), guesses_(GUESSES, -1) {}

    // The next text follows upon the last one in this context.
    void expect(std::uint64_t context) {
        place_ = (mixed(context + static_cast<std::uint64_t>(last_), 0x9e3779b97f4a7c15) >> 8) % GUESSES;
        __builtin_prefetch(&guesses_[place_]);
    }

    // Whether the JSON at `token.begin` is what was last seen in the place of the text that is expected; then
    // the token has its code, its kind and its end.
    bool guess(Token &token, const char *end) const {
        const std::int32_t code = guesses_[place_];
        if (code < 0 || static_cast<std::size_t>(code) >= size()) return false;
        const std::string_view text = at(static_cast<std::size_t>(code));
        if (text.empty() || static_cast<std::size_t>(end - token.begin) < text.size() ||
            std::memcmp(token.begin, text.data(), text.size()) != 0)
            return false;
        token.end = token.begin + text.size();
        switch (*token.begin) {
            case '"': token.kind = Kind::String; break;
            case '[': token.kind = Kind::Array; break;
            case '{': token.kind = Kind::Object; break;
            default:  // does not show its own end
                if (*token.end != ',' && *token.end != '}') return false;
                token.kind = *token.begin == 'n' ? Kind::Null : Kind::Integer;
        }
        token.code = code;
        token.has_escape = false;  // no phase has one, and nobody asks of others
        return true;
    }

    // The code of the last text but one.
    std::int32_t before() const { return before_; }

    // Of a text that was looked at with `guess`.
    std::int32_t code(const Token &token) {
        before_ = last_;
        if (token.code >= 0) return last_ = token.code;
        return guesses_[place_] = code(token.text());
    }

    std::int32_t code(std::string_view text) {
        if (size() && text == at(static_cast<std::size_t>(last_))) return last_;
        const std::uint64_t hash = this->hash(text);
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        std::size_t slot = hash & (slots_.size() - 1);
        for (; slots_[slot].code != EMPTY; slot = (slot + 1) & (slots_.size() - 1)) {
            const std::int32_t code = slots_[slot].code;
            if (slots_[slot].tag == tag && at(static_cast<std::size_t>(code)) == text) return last_ = code;
        }
        if (size() == INT32_MAX) throw Refused();
        last_ = static_cast<std::int32_t>(size());
        texts_.append(text);
        ends_.push_back(texts_.size());
        slots_[slot] = {tag, last_};
        if (2 * size() > slots_.size()) rehash(2 * slots_.size());
        return last_;
    }

    std::size_t size() const { return ends_.size() - 1; }

    std::string_view at(std::size_t code) const {
        return {texts_.data() + ends_[code], ends_[code + 1] - ends_[code]};
    }

    // Forget all but the first `count`.
    void cut(std::size_t count) {
        if (count == size()) return;
        ends_.resize(count + 1);
        texts_.resize(ends_.back());
        last_ = before_ = 0;
        rehash(slots_.size());
    }

  private:
    static constexpr std::int32_t EMPTY = -1;
    static constexpr std::size_t GUESSES = 16384;

    struct Slot {
        std::uint32_t tag = 0;  // half of the hash
        std::int32_t code = EMPTY;
    };

    static std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
        const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }

    std::uint64_t hash(std::string_view text) const {
        std::uint64_t hash = seed_ ^ text.size();
        const char *pos = text.data(), *end = pos + text.size();
        for (; end - pos >= 8; pos += 8) hash = mixed(hash ^ word(pos), 0x9e3779b97f4a7c15);
        std::uint64_t rest = 0;
        std::memcpy(&rest, pos, static_cast<std::size_t>(end - pos));
        return mixed(hash ^ rest ^ 0xa0761d6478bd642f, 0xe7037ed1a0b428db ^ seed_);
    }

    void rehash(std::size_t count) {
        slots_.assign(count, Slot());
        for (std::size_t code = 0; code < size(); ++code) {
            const std::uint64_t hash = this->hash(at(code));
            std::size_t slot = hash & (count - 1);
            while (slots_[slot].code != EMPTY) slot = (slot + 1) & (count - 1);
            slots_[slot] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::int32_t>(code)};
        }
    }

    std::uint64_t seed_;
    std::int32_t last_ = 0, before_ = 0;
    std::size_t place_ = 0;
    std::vector<Slot> slots_;
    std::vector<std::int32_t> guesses_;
    std::vector<std::size_t> ends_{0};
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

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr bool BY_WORDS = true;
#else
constexpr bool BY_WORDS = false;
#endif

// The bytes of eight that are no digits, as their highest bits; the lowest is right.
std::uint64_t no_digits(std::uint64_t word) {
    return ((word + 0x4646464646464646) | (word - 0x3030303030303030)) & 0x8080808080808080;
}

// The number that 1 to 16 digits before `end` are. 8 or 16 bytes are read, whatever `count` is: no value is so
// short that they are not there, since at least `[{"ts":` stands before one.
std::int64_t decimal(const char *end, std::ptrdiff_t count) {
    if (!BY_WORDS) {
        std::int64_t value = 0;
        for (const char *pos = end - count; pos < end; ++pos) value = 10 * value + (*pos - '0');
        return value;
    }
    const auto eight = [](const char *pos, std::ptrdiff_t count) {
        std::uint64_t digits = word(pos) & 0x0f0f0f0f0f0f0f0f & (~std::uint64_t{0} << 8 * (8 - count));
        digits = digits * 2561 >> 8;
        digits = (digits & 0x00ff00ff00ff00ff) * 6553601 >> 16;
        return static_cast<std::int64_t>((digits & 0x0000ffff0000ffff) * 42949672960001 >> 32);
    };
    return count <= 8 ? eight(end - 8, count) : eight(end - 16, count - 8) * 100000000 + eight(end - 8, 8);
}

// A walk over valid JSON that ends with a NUL, which is no part of any.
class Walk {
  public:
    Walk(const char *begin, const char *end) : pos(begin), end(end) {}

    const char *pos;
    const char *const end;

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

    void value(Token &token, int depth) {
        token.begin = pos;
        token.code = -1;
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
            case 't': literal("true"), token.kind = Kind::Boolean; break;
            case 'f': literal("false"), token.kind = Kind::Boolean; break;
            case 'n': literal("null"), token.kind = Kind::Null; break;
            default: token.kind = number();
        }
        token.end = pos;
    }

    void skip(int depth) {
        Token token;
        value(token, depth);
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
            skip(depth + 1);
        } while (goes_on(close));
    }

    // Walks over a string; whether it has an escape.
    bool string() {
        bool has_escape = false;
        ++pos;
        for (;;) {
            while (BY_WORDS && end - pos >= 8) {
                if (const std::uint64_t stop = stops(word(pos))) {
                    pos += __builtin_ctzll(stop) / 8;
                    break;
                }
                pos += 8;
            }
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

    void literal(const char *text) {
        for (; *text; ++text) expect(*text);
    }

    void digits() {
        const char *const first = pos;
        std::uint64_t stop = 0;
        while (BY_WORDS && !stop && end - pos >= 8) {
            stop = no_digits(word(pos));
            pos += stop ? __builtin_ctzll(stop) / 8 : 8;
        }
        while (is_digit(*pos)) ++pos;
        if (pos == first) throw Refused();
    }

    Kind number() {
        Kind kind = Kind::Integer;
        if (*pos == '-') ++pos;
        const char *const first = pos;
        digits();
        if (*first == '0' && pos - first > 1) throw Refused();
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

// Keys of objects that look alike. From the end of a value to the begin of the next one, or to the end of the
// object, mostly the same bytes stand as in an object before: they are compared, and walked over only if not.
class Keys {
  public:
    template <std::size_t COUNT>
    explicit Keys(const std::string_view (&names)[COUNT]) : names_(names), steps_(STATES * WAYS) {}

    static constexpr unsigned FIRST = 0, END = 254;

    // The number of the next key, or END; `state` is FIRST at the begin of an object.
    unsigned next(Walk &walk, unsigned &state) {
        if (const Step *step = seen(walk, state)) {
            walk.pos += step->size;
            walk.blanks();
            state = step->state;
            return step->number;
        }
        const char *begin = walk.pos;
        const unsigned before = state;
        bool goes_on = true;
        if (before == FIRST) {
            walk.blanks();
            goes_on = *walk.pos != '}';
            walk.pos += !goes_on;
        } else {
            goes_on = walk.goes_on('}');
        }
        unsigned number = END;
        state = FIRST;
        if (goes_on) {
            const std::string_view key = walk.key();
            number = names_.find(key);
            state = 1 + static_cast<unsigned>(Names::hash(key) % (STATES - 1));
        }
        if (walk.end - begin >= LONGEST)  // else it was not looked for
            learn(before, {begin, static_cast<std::size_t>(walk.pos - begin)}, number, state);
        return number;
    }

  private:
    static constexpr unsigned STATES = 128, WAYS = 4, LONGEST = 48;

    struct Step {
        char text[LONGEST] = {};
        std::uint64_t mask = 0;  // of the last word of the text
        std::uint8_t size = 0, number = 0, state = 0, age = 0;
    };

    const Step *seen(const Walk &walk, unsigned state) const {
        if (walk.end - walk.pos < LONGEST) return nullptr;
        const Step *step = &steps_[state * WAYS];
        for (const Step *last = step + WAYS; step < last && step->size; ++step) {
            unsigned at = 0;
            while (at + 8 < step->size && word(walk.pos + at) == word(step->text + at)) at += 8;
            if (at + 8 >= step->size && ((word(walk.pos + at) ^ word(step->text + at)) & step->mask) == 0)
                return step;
        }
        return nullptr;
    }

    void learn(unsigned before, std::string_view text, unsigned number, unsigned state) {
        if (text.size() > LONGEST) return;
        Step *steps = &steps_[before * WAYS];
        Step &step = steps[steps->age++ % WAYS];
        const std::uint8_t age = step.age;
        step = Step();
        std::memcpy(step.text, text.data(), text.size());
        std::memset(&step.mask, 0xff, (text.size() - 1) % 8 + 1);
        step.size = static_cast<std::uint8_t>(text.size());
        step.number = static_cast<std::uint8_t>(number);
        step.state = static_cast<std::uint8_t>(state);
        step.age = age;
    }

    Names names_;
    std::vector<Step> steps_;
};

// Refuse what does not fit the types of events.Event and events.Args.
void expect_text(const Token &token) {
    if (token.kind != Kind::String && token.kind != Kind::Null) throw Refused();
}

void expect_number(const Token &token) {
    if (token.kind != Kind::Integer || token.end - token.begin > 18) expect_text(token);
}

// A count, a size or an id that lies within LARGEST_COUNT.
std::int64_t integer(const Token &token) {
    const char *pos = token.begin;
    const bool is_negative = *pos == '-';
    pos += is_negative;
    if (token.kind != Kind::Integer || token.end - pos > 16) throw Refused();
    const std::int64_t value = decimal(token.end, token.end - pos);
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
        const char *point = pos;
        if (token.kind == Kind::Float && token.end - pos > 4 && token.end[-4] == '.')
            point = token.end - 4;  // mostly
        else
            while (point < token.end && is_digit(*point)) ++point;
        if (point - pos > 16) throw Refused();
        const std::int64_t whole = decimal(point, point - pos);
        std::int64_t fraction = 0;
        pos = point;
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

// A row of columns.Columns, and of columns.OpColumns.
struct Event {
    std::int64_t ts, dur, correlation, external_id, stream, device, bytes;
    std::int32_t phase, category, name, pid, tid, kernel, grid;
};

struct Op {
    std::int64_t event, sequence, forward_thread;
    std::int32_t dims, types, strides, values;
};

// Rows of one chunk, and what Python decodes as well.
struct Rows {
    std::vector<Event> events;
    std::vector<Op> ops;
    std::vector<std::int64_t> special;  // row, begin and end of each event of which more is needed
    std::int64_t bare = 0, other = 0;   // events without a phase, and of one that is not analyzed
};

class Scanner {
  public:
    explicit Scanner(std::uint64_t seed)
        : phases(seed), categories(seed), names(seed), pids(seed), tids(seed), kernels(seed), grids(seed),
          dims(seed), types(seed), strides(seed), values(seed) {
        kernels.code("");
        grids.code("");
        coded_[GRID] = &grids, coded_[KERNEL] = &kernels;
        coded_[DIMS] = &dims, coded_[TYPES] = &types, coded_[STRIDES] = &strides, coded_[VALUES] = &values;
    }

    Codes phases, categories, names, pids, tids, kernels, grids, dims, types, strides, values;

    // Whether the chunk was taken; if not, the dictionaries are as before.
    bool scan(const char *begin, const char *end, Rows &rows) {
        Codes *const all[] = {&phases, &categories, &names, &pids,    &tids,  &kernels,
                              &grids,  &dims,       &types, &strides, &values};
        constexpr int COUNT = sizeof all / sizeof *all;
        std::size_t sizes[COUNT];
        for (int number = 0; number < COUNT; ++number) sizes[number] = all[number]->size();
        rows.events.reserve(events_);
        rows.ops.reserve(ops_);
        try {
            array(begin, end, rows);
            events_ = rows.events.size() + rows.events.size() / 8;
            ops_ = rows.ops.size() + rows.ops.size() / 8;
            return true;
        } catch (const Refused &) {
            for (int number = 0; number < COUNT; ++number) all[number]->cut(sizes[number]);
            return false;
        }
    }

  private:
    Keys field_keys_{FIELD_NAMES}, argument_keys_{ARGUMENT_NAMES};
    Codes *coded_[ARGUMENTS] = {};
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
        has_ = has_argument_ = 0;
        walk.expect('{');
        unsigned state = Keys::FIRST;
        for (unsigned field; (field = field_keys_.next(walk, state)) != Keys::END;) {
            if (field == Names::NONE) {
                walk.skip(2);
                continue;
            }
            if (has(static_cast<Field>(field))) throw Refused();
            has_ |= 1u << field;
            Token &token = fields_[field];
            switch (field) {
                case PH:
                    phases.expect(static_cast<std::uint64_t>(phases.before()) << 32);
                    value(walk, token, 2, phases);
                    if (token.kind != Kind::String || token.has_escape) throw Refused();
                    break;
                case CAT:
                    categories.expect(static_cast<std::uint64_t>(categories.before()) << 32);
                    value(walk, token, 2, categories);
                    expect_text(token);
                    break;
                case NAME:
                    names.expect(context(CAT) + (static_cast<std::uint64_t>(names.before()) << 32));
                    value(walk, token, 2, names);
                    expect_text(token);
                    break;
                case PID:
                case TID: {
                    Codes &codes = field == PID ? pids : tids;
                    codes.expect(context(CAT));
                    value(walk, token, 2, codes);
                    expect_number(token);
                    break;
                }
                case ID:
                    walk.value(token, 2);
                    expect_number(token);
                    break;
                case ARGS:
                    if (*walk.pos == '{') {
                        arguments(walk);
                        break;
                    }
                    walk.value(token, 2);
                    if (token.kind != Kind::Null) throw Refused();
                    break;
                default: walk.value(token, 2);  // a time
            }
        }
    }

    void arguments(Walk &walk) {
        for (unsigned argument = GRID; argument < ARGUMENTS; ++argument) coded_[argument]->expect(context(NAME));
        ++walk.pos;
        unsigned state = Keys::FIRST;
        for (unsigned argument; (argument = argument_keys_.next(walk, state)) != Keys::END;) {
            if (argument == Names::NONE) {
                walk.skip(3);
                continue;
            }
            if (has(static_cast<Argument>(argument))) throw Refused();
            has_argument_ |= 1u << argument;
            Token &token = arguments_[argument];
            if (Codes *const codes = coded_[argument]) {
                value(walk, token, 3, *codes);
                continue;
            }
            walk.value(token, 3);
            if (argument == COLLECTIVE)
                expect_text(token);
            else
                expect_number(token);
        }
    }

    static void value(Walk &walk, Token &token, int depth, const Codes &codes) {
        token.begin = walk.pos;
        if (codes.guess(token, walk.end))
            walk.pos = token.end;
        else
            walk.value(token, depth);
    }

    // The last letters of a text, which tell most of them apart; where it is shorter, its key is before it.
    std::uint64_t context(Field field) const {
        return has(field) ? word(fields_[field].end - 8) * 0x9e3779b97f4a7c15 : 0;
    }

    std::string_view text(Field field, std::string_view absent) const {
        return has(field) ? fields_[field].text() : absent;
    }

    std::int32_t code(Codes &codes, Field field, std::string_view absent) {
        return has(field) ? codes.code(fields_[field]) : codes.code(absent);
    }

    std::int32_t code(Argument argument) {
        Codes &codes = *coded_[argument];
        return has(argument) ? codes.code(arguments_[argument]) : codes.code("");
    }

    std::int64_t number(Argument argument) const {
        return has(argument) ? integer(arguments_[argument]) : -1;
    }

    void row(Rows &rows, std::int64_t begin, std::int64_t end) {
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
        const auto number_of_row = static_cast<std::int64_t>(rows.events.size());
        const bool is_collective = has(COLLECTIVE) && arguments_[COLLECTIVE].kind == Kind::String;
        if (is_collective || phase[1] == 'M' || phase[1] == 'b' || phase[1] == 'e')
            rows.special.insert(rows.special.end(), {number_of_row, begin, end});
        Event event;
        event.phase = phases.code(fields_[PH]);
        event.category = code(categories, CAT, "\"\"");
        event.name = code(names, NAME, "\"\"");
        event.pid = code(pids, PID, "-1");
        event.tid = code(tids, TID, "-1");
        event.ts = ts;
        event.dur = dur;
        event.external_id = number(EXTERNAL_ID);
        const std::int64_t sequence = number(SEQUENCE);
        if (has(DIMS) || sequence != -1) {
            rows.ops.push_back({number_of_row, sequence, number(FORWARD_THREAD), code(DIMS), code(TYPES),
                                code(STRIDES), code(VALUES)});
            event.correlation = event.stream = event.device = event.bytes = -1;
            event.kernel = event.grid = 0;
            rows.events.push_back(event);
            return;
        }
        const std::int64_t correlation = number(CORRELATION);
        const bool is_flow = correlation == -1 && has(ID);
        event.correlation = is_flow ? integer(fields_[ID]) : correlation;
        event.stream = number(STREAM);
        event.device = number(DEVICE);
        // What a memory event says is allocated counts on a device, not on the host (type 0).
        std::int64_t size = number(ALLOCATED);
        if (size == -1)
            size = number(BYTES);
        else if (number(DEVICE_TYPE) <= 0)
            size = -1;
        event.bytes = size < -1 ? -1 : size;
        event.kernel = has(KERNEL) ? code(KERNEL) : 0;
        event.grid = has(GRID) ? code(GRID) : 0;
        rows.events.push_back(event);
    }
};

// Columns of rows, one behind the other.
template <typename Row, typename T>
PyObject *as_bytes(const std::vector<Row> &rows, std::initializer_list<T Row::*> columns) {
    const std::size_t size = rows.size() * columns.size() * sizeof(T);
    PyObject *bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (bytes == nullptr) return nullptr;
    char *pos = PyBytes_AsString(bytes);
    for (T Row::*column : columns)
        for (const Row &row : rows) {
            std::memcpy(pos, &(row.*column), sizeof(T));
            pos += sizeof(T);
        }
    return bytes;
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
    const std::vector<std::int64_t> &special = rows.special;
    return Py_BuildValue(
        "(NNNNy#LL)",
        as_bytes(rows.events, {&Event::phase, &Event::category, &Event::name, &Event::pid, &Event::tid,
                               &Event::grid, &Event::kernel}),
        as_bytes(rows.events, {&Event::ts, &Event::dur, &Event::correlation, &Event::external_id,
                               &Event::stream, &Event::device, &Event::bytes}),
        as_bytes(rows.ops, {&Op::event, &Op::sequence, &Op::forward_thread}),
        as_bytes(rows.ops, {&Op::dims, &Op::types, &Op::strides, &Op::values}),
        special.empty() ? "" : reinterpret_cast<const char *>(special.data()),
        static_cast<Py_ssize_t>(special.size() * sizeof special[0]),
        static_cast<long long>(rows.bare), static_cast<long long>(rows.other));
}

PyObject *dictionaries(PyObject *self, PyObject *) {
    const Scanner &scanner = scanner_of(self);
    return Py_BuildValue("(NNNNNNNNNNN)", as_list(scanner.phases), as_list(scanner.categories),
                         as_list(scanner.names), as_list(scanner.pids), as_list(scanner.tids),
                         as_list(scanner.kernels), as_list(scanner.grids), as_list(scanner.dims),
                         as_list(scanner.types), as_list(scanner.strides), as_list(scanner.values));
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

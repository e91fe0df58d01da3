// Loads, stores, atomic operations, asynchronous copies, and moves of matrices (PTX ISA, sections 9.7.9 and 9.7.13).
#include <algorithm>
#include <array>

#include "dispatch.h"
#include "handovers.h"
#include "number_formats.h"
#include "pending.h"

namespace kernrec {
namespace {

// Load values of type M into registers of type R with extension.
template <class R, class M>
void load(Batch& batch, const Instruction& ins) {
    const uint32_t bytes = ins.mode, count = uint32_t(ins.list.size());
    if (!count && batch.count_uniform_load(ins, bytes)) return;
    const std::vector<Resolved>& all = batch.access(ins, bytes, AccessKind::kRead);
    for (const Resolved& at : all) {
        const uint32_t first = at.warp * kWarp;
        for (uint32_t i = 0; i < count; i++) {
            if (!ins.list[i]) continue;
            R* d = batch.row<R>(ins.list[i]) + first;
            const size_t offset = size_t(i) * sizeof(M);
            const auto value = [&](uint32_t lane) {
                M read;
                std::memcpy(&read, at.places[lane] + offset, sizeof read);
                return R(read);
            };
            if (at.same) {
                std::fill_n(d, kWarp, value(0));
            } else if (at.consecutive && count == 1) {
                M values[kWarp];
                std::memcpy(values, at.places[0], sizeof values);
                for (uint32_t lane = 0; lane < kWarp; lane++) d[lane] = R(values[lane]);
            } else if (at.mask == ~0u) {
                for (uint32_t lane = 0; lane < kWarp; lane++) d[lane] = value(lane);
            } else {
                for (const uint32_t lane : LanesOf(at.mask)) d[lane] = value(lane);
            }
        }
        batch.count_access(ins, at, bytes, AccessKind::kRead);
    }
    batch.watch(all, bytes, ins.unit, AccessKind::kRead);
    if (Handovers* handovers = batch.handovers()) {
        if (count == 1 && ins.list[0])
            for (const Resolved& at : all)
                for (const uint32_t lane : LanesOf(at.mask)) {
                    const uint8_t* seen = handovers->overlooked(ins, at, lane, bytes);
                    M value;
                    if (!seen) continue;
                    std::memcpy(&value, seen, sizeof value);
                    batch.row<R>(ins.list[0])[at.warp * kWarp + lane] = R(value);
                }
        handovers->record(ins, all, bytes, false, false);
    }
    if (batch.races()) batch.check_races(ins, all, bytes, false, false);
}

Run load_run(uint32_t bits, uint32_t width, bool is_signed) {
    return for_width(bits, [&](auto memory) {
        return for_width(width, [&](auto row) -> Run {
            using M = decltype(memory);
            using R = decltype(row);
            return is_signed ? load<std::make_signed_t<R>, std::make_signed_t<M>> : load<R, M>;
        });
    });
}

template <class T>
void store(Batch& batch, const Instruction& ins) {
    const uint32_t bytes = ins.mode, count = uint32_t(ins.list.size());
    const std::vector<Resolved>& all = batch.access(ins, bytes, AccessKind::kWrite);
    if (Handovers* handovers = batch.handovers())
        for (const Resolved& at : all) handovers->keep(ins, at, bytes);
    for (const Resolved& at : all)
        for (uint32_t i = 0; i < count; i++) {
            const T* source = batch.row<T>(ins.list[i]) + at.warp * kWarp;
            const size_t offset = size_t(i) * sizeof(T);
            if (at.consecutive && count == 1) {
                std::memcpy(at.places[0], source, kWarp * sizeof(T));
                continue;
            }
            for (const uint32_t lane : LanesOf(at.mask))
                std::memcpy(at.places[lane] + offset, source + lane, sizeof(T));
        }
    for (const Resolved& at : all) batch.count_access(ins, at, bytes, AccessKind::kWrite);
    batch.watch(all, bytes, ins.unit, AccessKind::kWrite);
    if (Handovers* handovers = batch.handovers()) handovers->record(ins, all, bytes, true, false);
    if (!batch.races()) return;
    bool agree = true;
    for (const Resolved& at : all)
        for (uint32_t i = 0; i < count && agree; i++) {
            const T* source = batch.row<T>(ins.list[i]) + at.warp * kWarp;
            for (const uint32_t lane : LanesOf(at.mask))
                agree &= std::memcmp(at.places[lane] + i * sizeof(T), source + lane, sizeof(T)) == 0;
        }
    batch.check_races(ins, all, bytes, true, agree);
}

const Registration kAccess({"ld", "ldu", "st"}, [](Decoder& decoder, const Source& ins) {
    const bool loads = ins.opcode != "st";
    const std::string& type = ins.type();
    const uint32_t bits = width_of(type);
    std::vector<Row> rows;
    uint32_t width = bits;  // of the registers
    for (const Operand& item : elements(ins.operands[loads ? 0 : 1])) {
        const bool unused = loads && item.kind == OperandKind::kNone;
        rows.push_back(unused ? Row{} : loads ? decoder.plain(item) : decoder.read(item, type));
        if (rows.back()) width = rows.back().width;
    }
    for (const Row& row : rows)
        if (row && row.width != width) refuse("registers of several widths");
    if (bits < 8 || width < bits) refuse("a register that is too narrow");
    const Run run = loads ? load_run(bits, width, type[0] == 's')
                          : for_width(bits, [](auto of) -> Run { return store<decltype(of)>; });
    Instruction& made = decoder.emit_access(run, ins.operands[loads ? 1 : 0], space_of(ins), std::move(rows));
    made.unit = bits / 8;
    made.mode = bits / 8 * uint32_t(made.list.size());
});

// Atomic operations: lanes with the same address execute in lane order.

uint16_t reduced_half(Reduction reduction, uint16_t old, uint16_t b, bool is_bfloat) {
    if (reduction == Reduction::kExch) return b;
    const NumberType type = is_bfloat ? NumberType::kBf16 : NumberType::kF16;
    return uint16_t(from_double(type, reduced(reduction, to_double(type, old), to_double(type, b))));
}

// Run an atomic operation on elements of type T. is_half: 1 for f16, 2 for bf16. A 32-bit T holds two numbers.
template <class T, int is_half>
void atomic(Batch& batch, const Instruction& ins) {
    const uint32_t count = uint32_t(ins.list.size()) / 3, bytes = ins.unit * count;
    const std::vector<Resolved>& all = batch.access(ins, bytes, AccessKind::kAtomic);
    const auto reduction = Reduction(ins.mode);
    for (const Resolved& at : all) {
        const uint32_t first = at.warp * kWarp;
        for (const uint32_t lane : LanesOf(at.mask)) {
            for (uint32_t i = 0; i < count; i++) {
                uint8_t* place = at.places[lane] + i * sizeof(T);
                T old, result;
                std::memcpy(&old, place, sizeof old);
                const T b = batch.row<T>(ins.list[count + i])[first + lane];
                if constexpr (is_half == 0) {
                    const T c = batch.row<T>(ins.list[2 * count + i])[first + lane];
                    result = reduced(reduction, old, b, c);
                } else {
                    result = 0;
                    for (uint32_t half = 0; half < sizeof(T) / 2; half++)
                        result |= T(T(reduced_half(reduction, uint16_t(old >> 16 * half), uint16_t(b >> 16 * half),
                                                   is_half == 2))
                                    << 16 * half);
                }
                std::memcpy(place, &result, sizeof result);
                if (ins.list[i]) batch.row<T>(ins.list[i])[first + lane] = old;
            }
        }
    }
    const bool merges = ins.modes[0];
    if (Handovers* handovers = batch.handovers()) handovers->record(ins, all, bytes, true, true);
    const bool one_lane = ins.modes[1];  // `.warp_aggregated`: one lane sends the combined operation
    std::vector<Resolved> leaders;
    if (one_lane) leaders = all;
    for (Resolved& at : leaders) {
        at.mask &= 0u - at.mask;
        at.same = at.consecutive = false;
    }
    const std::vector<Resolved>& sent = one_lane ? leaders : all;
    for (const Resolved& at : sent) batch.count_access(ins, at, bytes, AccessKind::kAtomic, merges);
    batch.watch(sent, bytes, ins.unit, AccessKind::kAtomic);
}

const std::pair<const char*, Run> kAtomicRuns[] = {
    {"u32", atomic<uint32_t, 0>},  {"b32", atomic<uint32_t, 0>},   {"s32", atomic<int32_t, 0>},
    {"u64", atomic<uint64_t, 0>},  {"b64", atomic<uint64_t, 0>},   {"s64", atomic<int64_t, 0>},
    {"b16", atomic<uint16_t, 0>},  {"u16", atomic<uint16_t, 0>},   {"f32", atomic<float, 0>},
    {"f64", atomic<double, 0>},    {"f16", atomic<uint16_t, 1>},   {"f16x2", atomic<uint32_t, 1>},
    {"bf16", atomic<uint16_t, 2>}, {"bf16x2", atomic<uint32_t, 2>}};

const Registration kAtomic({"atom", "red"}, [](Decoder& decoder, const Source& ins) {
    Reduction reduction = Reduction::kNone;
    std::string type;
    Run run = nullptr;
    for (const std::string& mark : ins.modifiers) {
        if (reduction == Reduction::kNone) reduction = reduction_of(mark, Reduction::kCas);
        for (const auto& [name, of_type] : kAtomicRuns)
            if (mark == name) type = mark, run = of_type;
    }
    if (reduction == Reduction::kNone || !run) refuse();
    if (type.find('f') != std::string::npos && reduction > Reduction::kMax && reduction != Reduction::kExch) refuse();
    const bool returns = ins.opcode == "atom", compares = reduction == Reduction::kCas;
    std::vector<Row> rows;
    const Operand& address = ins.operands[returns];
    const Operands b = elements(ins.operands[returns + 1u]), c = elements(ins.operands[returns + (compares ? 2u : 1u)]);
    if (returns)
        for (const Operand& item : elements(ins.operands[0]))
            rows.push_back(item.kind == OperandKind::kNone ? Row{} : decoder.write(item, type));
    rows.resize(std::max(rows.size(), b.size()));
    if (rows.size() != b.size() || c.size() != b.size()) refuse("operands of several lengths");
    for (const Operands* items : {&b, &c})
        for (const Operand& item : *items) rows.push_back(decoder.read(item, type));
    const Operand& by = ins.operands.back();
    const bool adds_one =
        (ins.has("add") && by.value == 1) || (ins.has("inc") && (by.value == -1 || by.value == 0xFFFFFFFFll));
    const bool merges = by.kind == OperandKind::kInteger && (ins.type() == "u32" || ins.type() == "s32") && adds_one &&
                        !decoder.result_is_read();
    Instruction& made = decoder.emit_access(run, address, space_of(ins), std::move(rows));
    made.unit = width_of(type) / 8;
    made.mode = uint32_t(reduction);
    made.modes = {merges, ins.has("warp_aggregated")};
    decoder.note_atomic(made.space);
});

// The emulator has nothing to do for the opcodes below. The grid for which `griddepcontrol` waits has already finished,
// and lanes converge before a basic block that begins with `bar.warp.sync`.
const Registration kNothing({"membar", "discard", "applypriority", "prefetch", "prefetchu", "nanosleep",
                             "griddepcontrol", "bar"},
                            [](Decoder& decoder, const Source&) { decoder.emit(nothing); });

void commit_copies(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.committed[lane]++; });
}

void wait_for_copies(Batch& batch, const Instruction& ins) {
    const std::optional<int64_t> allowed = ins.mode ? std::nullopt : std::optional<int64_t>(ins.immediate);
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t mask) { finish_copies(batch, warp, mask, allowed); });
}

constexpr uint32_t kMostCopied = 16;  // bytes of one cp.async

struct Copy {
    Instruction to, from;
    uint32_t bytes;
    Row read_bytes;  // bytes to read in each lane; no row: all `bytes`
    Row ignores;     // lanes that read nothing and store zeros
};

void start_copies(Batch& batch, const Instruction& ins) {
    const auto& [to, from, bytes, read_bytes, ignored] = form_of<Copy>(ins);
    const std::vector<Resolved> targets = batch.access(to, bytes, AccessKind::kWrite);
    for (const Resolved& at : targets) batch.count_access(to, at, bytes, AccessKind::kWrite);
    if (batch.races()) batch.check_races(to, targets, bytes, true, false, true);
    if (batch.checks()) batch.checks()->start_copies(targets, bytes);
    const uint32_t* const ignores = ignored ? batch.flags(ignored) : nullptr;
    const uint32_t* const sizes = read_bytes ? batch.row<uint32_t>(read_bytes) : nullptr;
    std::array<std::vector<WarpMask>, kMostCopied + 1> reading;  // lanes that read the same number of bytes
    std::vector<Batch::Copies> copies(targets.size());
    for (size_t i = 0; i < targets.size(); i++) {
        const Resolved& at = targets[i];
        copies[i].mask = at.mask;
        copies[i].bytes = bytes;
        std::memcpy(copies[i].groups, &batch.committed[at.warp * kWarp], sizeof copies[i].groups);
        std::memcpy(copies[i].places, at.places, sizeof at.places);
        std::array<uint32_t, kMostCopied + 1> lanes{};
        if (ignores) lanes[bytes] = at.mask & ~ignores[at.warp];
        else if (!sizes) lanes[bytes] = at.mask;
        for (const uint32_t lane : LanesOf(sizes ? at.mask : 0))
            lanes[std::min(sizes[at.warp * kWarp + lane], bytes)] |= 1u << lane;
        for (uint32_t amount = 1; amount <= bytes; amount++)
            if (lanes[amount]) reading[amount].push_back({at.warp, lanes[amount]});
    }
    for (uint32_t amount = 1; amount <= bytes; amount++) {
        if (reading[amount].empty()) continue;
        const bool whole = (amount & (amount - 1)) == 0;
        const std::vector<Resolved> sources =
            batch.access_of(from, whole ? amount : 1, AccessKind::kRead, reading[amount]);
        if (!whole) {
            Instruction last = from;
            last.immediate += amount - 1;
            batch.access_of(last, 1, AccessKind::kRead, reading[amount]);
        }
        batch.watch(sources, amount, amount, AccessKind::kRead);
        size_t first = 0;  // targets and sources are sorted by warp
        for (const Resolved& at : sources) {
            batch.count_access(from, at, amount, AccessKind::kRead);
            while (targets[first].warp < at.warp) first++;
            for (size_t i = first; i < targets.size() && targets[i].warp == at.warp; i++)
                for (const uint32_t lane : LanesOf(at.mask & targets[i].mask))
                    std::memcpy(copies[i].data[lane], at.places[lane], amount);
        }
    }
    for (size_t i = 0; i < targets.size(); i++) batch.pending[targets[i].warp].push_back(copies[i]);
}

const Registration kCopy({"cp"}, [](Decoder& decoder, const Source& ins) {
    if (ins.has("bulk")) return decode_bulk(decoder, ins);
    if (ins.modifiers[0] != "async") refuse();
    if (ins.has("mbarrier")) return decode_arrival_after_copies(decoder, ins);
    if (ins.has("commit_group")) {
        decoder.emit(commit_copies);
        return;
    }
    if (ins.has("wait_all") || ins.has("wait_group")) {
        const bool all = ins.has("wait_all");
        Instruction& made = decoder.emit(wait_for_copies);
        made.mode = all;
        made.immediate = all ? 0 : literal(ins.operands[0], "wait_group without a literal");
        return;
    }
    if (!ins.has("shared") || !ins.has("global")) refuse();
    const int64_t size = literal(ins.operands[2]);
    if ((size != 4 && size != 8 && size != 16) || (ins.has("cg") && size != 16))
        refuse("a copy of other than 4, 8 or 16 bytes");
    Copy copy{decoder.access(ins.operands[0], Space::kShared),
              decoder.access(ins.operands[1], Space::kGlobal),
              uint32_t(size),
              {},
              {}};
    Operands extra(ins.operands.begin() + 3, ins.operands.end());
    if (ins.has("cache_hint") && !extra.empty()) extra.pop_back();
    if (!extra.empty()) {
        if (extra[0].kind == OperandKind::kRegister && decoder.plain(extra[0]).width == 1)
            copy.ignores = decoder.plain(extra[0]);
        else if (extra[0].kind != OperandKind::kInteger || extra[0].value != size)
            copy.read_bytes = decoder.read(extra[0], "u32");
    }
    emit_form(decoder, start_copies, std::move(copy));
});

// Matrices of eight rows of eight 16-bit elements

void transpose(const uint32_t (&words)[kWarp], uint32_t (&result)[kWarp]) {
    uint16_t from[8][8], to[8][8];
    std::memcpy(from, words, sizeof from);
    for (uint32_t row = 0; row < 8; row++)
        for (uint32_t column = 0; column < 8; column++) to[column][row] = from[row][column];
    std::memcpy(result, to, sizeof to);
}

template <bool stores>
void move_matrices(Batch& batch, const Instruction& ins) {
    constexpr AccessKind kind = stores ? AccessKind::kWrite : AccessKind::kRead;
    const uint32_t count = uint32_t(ins.list.size());
    const uint32_t lanes = count == 4 ? ~0u : (1u << 8 * count) - 1;
    batch.require_whole_warps(ins);
    const std::vector<Resolved>& all = batch.access(ins, 16, kind, lanes);
    for (const Resolved& at : all) batch.count_access(ins, at, 16, kind, false, true);
    batch.watch(all, 16, 16, kind);
    if (batch.races()) batch.check_races(ins, all, 16, stores, false);
    for (const Resolved& at : all)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t words[kWarp], turned[kWarp];
            uint32_t* const registers = batch.row<uint32_t>(ins.list[i]) + at.warp * kWarp;
            const auto each_row = [&](auto move) {
                for (uint32_t row = 0; row < 8; row++) move(at.places[8 * i + row], 4 * row);
            };
            if (stores) std::memcpy(words, registers, sizeof words);
            else each_row([&](const uint8_t* place, uint32_t word) { std::memcpy(words + word, place, 16); });
            if (ins.mode) transpose(words, turned);
            const uint32_t* const moved = ins.mode ? turned : words;
            if (!stores) std::memcpy(registers, moved, sizeof words);
            else each_row([&](uint8_t* place, uint32_t word) { std::memcpy(place, moved + word, 16); });
        }
}

const Registration kMatrices({"ldmatrix", "stmatrix"}, [](Decoder& decoder, const Source& ins) {
    const bool stores = ins.opcode == "stmatrix";
    uint32_t number = 0;
    for (const std::string& mark : ins.modifiers) {
        if (mark == "x1" || mark == "x2" || mark == "x4") number = uint32_t(mark[1] - '0');
        else if (mark != "sync" && mark != "aligned" && mark != "m8n8" && mark != "trans" && mark != "shared" &&
                 mark != "cta" && mark != "b16")
            refuse("." + mark);
    }
    if (!number || !ins.has("sync") || !ins.has("aligned") || !ins.has("m8n8") || ins.type() != "b16" ||
        ins.operands.size() != 2)
        refuse();
    const Operand &address = ins.operands[stores ? 0 : 1], &registers = ins.operands[stores ? 1 : 0];
    std::vector<Row> rows;
    for (const Operand& item : elements(registers))
        rows.push_back(stores ? decoder.read(item, "b32") : decoder.write(item, "b32"));
    if (rows.size() != number)
        refuse(std::to_string(rows.size()) + " registers for " + std::to_string(number) + " matrices");
    Instruction& made = decoder.emit_access(stores ? move_matrices<true> : move_matrices<false>, address,
                                            ins.has("shared") ? Space::kShared : Space::kGeneric, std::move(rows));
    made.unit = 8;
    made.mode = ins.has("trans");
});

void move_matrix(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
        uint32_t words[kWarp], turned[kWarp];
        std::memcpy(words, batch.row<uint32_t>(ins.a) + first, sizeof words);
        transpose(words, turned);
        std::memcpy(batch.row<uint32_t>(ins.d) + first, turned, sizeof turned);
    });
}

const Registration kMoveMatrix({"movmatrix"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers != Modifiers{"sync", "aligned", "m8n8", "trans", "b16"}) refuse();
    decoder.emit_typed(move_matrix, {"b32", "b32"});
});

}  // namespace

void finish_copies(Batch& batch, uint32_t warp, uint32_t mask, std::optional<int64_t> allowed) {
    std::vector<Batch::Copies>& pending = batch.pending[warp];
    for (Batch::Copies& copies : pending)
        for (const uint32_t lane : LanesOf(copies.mask & mask)) {
            if (allowed && int64_t(copies.groups[lane]) >= int64_t(batch.committed[warp * kWarp + lane]) - *allowed)
                continue;
            std::memcpy(copies.places[lane], copies.data[lane], copies.bytes);
            if (batch.checks())
                batch.checks()->end_copy(warp * kWarp + lane, copies.places[lane] - batch.shared(0), copies.bytes);
            copies.mask &= ~(1u << lane);
        }
    const auto has_ended = [](const Batch::Copies& copies) { return !copies.mask; };
    pending.erase(std::remove_if(pending.begin(), pending.end(), has_ended), pending.end());
}

}  // namespace kernrec

// Loads, stores, atomic operations, asynchronous copies, and moves of matrices (PTX ISA, sections 9.7.9 and 9.7.13).
#include <algorithm>
#include <map>
#include <set>

#include "dispatch.h"
#include "handovers.h"
#include "number_formats.h"
#include "pending.h"
#include "reductions.h"

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
            for (const uint32_t lane : LanesOf(at.mask)) d[lane] = value(lane);
        }
    }
    batch.record(ins, all, bytes, AccessKind::kRead);
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
    batch.check_races(ins, all, bytes, false, false);
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
            for (const uint32_t lane : LanesOf(at.mask))
                std::memcpy(at.places[lane] + i * sizeof(T), source + lane, sizeof(T));
        }
    batch.record(ins, all, bytes, AccessKind::kWrite);
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

void atomic(Batch& batch, const Instruction& ins) {
    const uint32_t count = uint32_t(ins.list.size()) / 3, bytes = ins.unit * count;
    const auto type = NumberType(ins.modes[2]);
    const std::vector<Resolved>& all = batch.access(ins, bytes, AccessKind::kAtomic);
    for (const Resolved& at : all)
        for (const uint32_t bit : LanesOf(at.mask))
            for (uint32_t i = 0; i < count; i++) {
                const uint32_t lane = at.warp * kWarp + bit;
                uint8_t* place = at.places[bit] + i * ins.unit;
                const uint64_t b = batch.value(ins.list[count + i], lane),
                               c = batch.value(ins.list[2 * count + i], lane);
                uint64_t old = 0, result = 0;
                std::memcpy(&old, place, ins.unit);
                for (uint32_t shift = 0; shift < 8 * ins.unit; shift += uint32_t(number_bits(type)))
                    result |= reduce(Reduction(ins.mode), type, old >> shift, b >> shift, c >> shift) << shift;
                std::memcpy(place, &result, ins.unit);
                if (ins.list[i]) batch.put_value(ins.list[i], lane, old);
            }
    const bool merges = ins.modes[0];
    if (Handovers* handovers = batch.handovers()) handovers->record(ins, all, bytes, true, true);
    if (!ins.modes[1]) return batch.record(ins, all, bytes, AccessKind::kAtomic, merges);
    std::vector<Resolved> leaders = all;  // `.warp_aggregated`: one lane sends the combined operation
    for (Resolved& at : leaders) {
        at.mask &= 0u - at.mask;
        std::fill_n(at.addresses, kWarp, at.addresses[__builtin_ctz(at.mask)]);
    }
    batch.record(ins, leaders, bytes, AccessKind::kAtomic, merges);
}

const std::set<std::string> kAtomicTypes = {"u32", "b32", "s32", "u64", "b64",   "s64",  "b16",
                                            "u16", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"};

const Registration kAtomic({"atom", "red"}, [](Decoder& decoder, const Source& ins) {
    Reduction reduction = Reduction::kNone;
    std::string type;
    for (const std::string& mark : ins.modifiers) {
        if (reduction == Reduction::kNone) reduction = reduction_of(mark, Reduction::kCas);
        if (kAtomicTypes.count(mark)) type = mark;
    }
    if (reduction == Reduction::kNone || type.empty()) refuse();
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
    Instruction& made = decoder.emit_access(atomic, address, space_of(ins), std::move(rows));
    made.unit = width_of(type) / 8;
    made.mode = uint32_t(reduction);
    made.modes = {merges, ins.has("warp_aggregated"), uint32_t(number_type(type.substr(0, type.find('x'))))};
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

struct Copy {
    Instruction to, from;
    uint32_t bytes;
    Row read_bytes;  // bytes to read in each lane; no row: all `bytes`
    Row ignores;     // lanes that read nothing and store zeros
};

void start_copies(Batch& batch, const Instruction& ins) {
    const auto& [to, from, bytes, read_bytes, ignores] = form_of<Copy>(ins);
    const std::vector<Resolved> targets = batch.access(to, bytes, AccessKind::kWrite);
    batch.record(to, targets, bytes, AccessKind::kWrite);
    batch.check_races(to, targets, bytes, true, false, true);
    if (batch.checks()) batch.checks()->start_copies(targets, bytes);
    std::map<uint32_t, std::vector<WarpMask>> reading;  // lanes, keyed by the number of bytes that they read
    std::vector<Batch::LaneCopy> copies(batch.lanes);
    for (const Resolved& at : targets)
        for (const uint32_t bit : LanesOf(at.mask)) {
            const uint32_t lane = at.warp * kWarp + bit;
            copies[lane] = {bit, batch.committed[lane], bytes, at.places[bit], {}};
            uint32_t amount = ignores && batch.value(ignores, lane) ? 0 : bytes;
            if (read_bytes) amount = std::min(batch.row<uint32_t>(read_bytes)[lane], bytes);
            std::vector<WarpMask>& lanes = reading[amount];
            if (lanes.empty() || lanes.back().warp != at.warp) lanes.push_back({at.warp, 0});
            lanes.back().mask |= 1u << bit;
        }
    reading.erase(0);
    for (const auto& [amount, lanes] : reading) {
        const bool whole = (amount & (amount - 1)) == 0;
        const std::vector<Resolved> sources = batch.access_of(from, whole ? amount : 1, AccessKind::kRead, lanes);
        if (!whole) {
            Instruction last = from;
            last.immediate += amount - 1;
            batch.access_of(last, 1, AccessKind::kRead, lanes);
        }
        batch.record(from, sources, amount, AccessKind::kRead);
        for (const Resolved& at : sources)
            for (const uint32_t bit : LanesOf(at.mask))
                std::memcpy(copies[at.warp * kWarp + bit].data, at.places[bit], amount);
    }
    for (const Resolved& at : targets)
        for (const uint32_t bit : LanesOf(at.mask)) batch.pending[at.warp].push_back(copies[at.warp * kWarp + bit]);
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
    batch.record(ins, all, 16, kind, false, true);
    batch.check_races(ins, all, 16, stores, false);
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
    std::vector<Batch::LaneCopy> left;
    for (const Batch::LaneCopy& copy : batch.pending[warp]) {
        const uint32_t lane = warp * kWarp + copy.lane;
        const bool ends =
            mask >> copy.lane & 1 && (!allowed || int64_t(copy.group) < int64_t(batch.committed[lane]) - *allowed);
        if (!ends) {
            left.push_back(copy);
            continue;
        }
        std::memcpy(copy.place, copy.data, copy.bytes);
        if (batch.checks()) batch.checks()->end_copy(lane, size_t(copy.place - batch.shared(0)), copy.bytes);
    }
    batch.pending[warp] = std::move(left);
}

}  // namespace kernrec

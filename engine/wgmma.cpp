// Matrix multiplication by a warpgroup: `wgmma.mma_async`, `wgmma.fence`, `wgmma.commit_group`, `wgmma.wait_group` (PTX
// ISA, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// The engine multiplies when the instruction is issued, and rejects register accesses before the wait. The race
// detector rejects writes to the tiles.
#include <algorithm>
#include <set>

#include "dispatch.h"
#include "pending.h"
#include "tensor_core.h"
#include "text.h"

namespace kernrec {

using Type = NumberType;

struct WgmmaForm {
    MatrixMultiply product;
    Modifiers name;
    std::vector<Row> accumulators, inputs;  // registers of D, and of A if A is not in shared memory
    std::set<uint32_t> accumulator_rows, input_rows;  // row numbers
    Row a, b;  // descriptors
    Row scale_d;  // operand scale-d
    bool scale_d_inverted = false;
    bool a_mn_major = false, b_mn_major = false;
};

namespace {

// Return a placeholder that Python replaces by the name and line of an instruction.
std::string named(uint32_t source) { return joined("\x01", source, "\x01"); }

uint32_t first_warp_of(const Batch& batch, uint32_t warp) { return warp - warp % batch.warps_per_block % 4; }

// Return whether two sets have a number in common.
bool overlap(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
    return std::any_of(a.begin(), a.end(), [&](uint32_t number) { return b.count(number); });
}

// Record accesses to registers. Throw Fault if an operation in flight uses one. sources: first access of each row.
void touch(Warpgroup& group, const std::vector<Row>& rows, const std::vector<uint32_t>& sources) {
    for (size_t i = 0; i < rows.size(); i++)
        for (const auto& [source, form, committed, read] : group.in_flight)
            if (form->accumulator_rows.count(rows[i].index) || form->input_rows.count(rows[i].index))
                throw Fault(FaultKind::kEmulation, sources[i],
                            joined("accesses a register that ", named(source),
                                   " still uses; a wgmma.wait_group must come first"));
    for (const Row& row : rows) {
        if (group.touched.size() <= row.index) group.touched.resize(row.index + 1);
        group.touched[row.index] = true;
    }
}

// Start an operation that reads pieces of the batch's shared memory.
void start(Batch& batch, uint32_t first_warp, const WgmmaForm& form, Pieces pieces) {
    Warpgroup& group = batch.work().warpgroups[first_warp];
    if (!group.fenced) batch.fail("the kernel executed no wgmma.fence before this");
    for (const std::set<uint32_t>* rows : {&form.accumulator_rows, &form.input_rows})
        for (const uint32_t row : *rows)
            if (row < group.touched.size() && group.touched[row])
                batch.fail("the kernel executed no wgmma.fence after the last access to its registers");
    for (const Warpgroup::InFlight& other : group.in_flight) {
        const WgmmaForm& before = *other.form;
        const bool sums = &before == &form || overlap(form.accumulator_rows, before.accumulator_rows);
        if ((sums && form.name != before.name) || overlap(form.input_rows, before.accumulator_rows) ||
            overlap(form.accumulator_rows, before.input_rows))
            batch.fail("uses registers that " + named(other.source) +
                       " still uses; a wgmma.wait_group must come first");
    }
    std::optional<AsyncRead> read;
    if (RaceDetector* races = batch.races())
        read = races->begin_read(batch.source, std::move(pieces),
                                 {first_warp, first_warp + 1, first_warp + 2, first_warp + 3});
    group.in_flight.push_back({batch.source, &form, group.committed, std::move(read)});
}

}  // namespace

void touch_warpgroup_registers(Batch& batch, const Instruction& ins) {
    int64_t last = -1;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        const uint32_t first = first_warp_of(batch, warp);
        if (first != last) touch(batch.work().warpgroups[first], ins.list, ins.modes);
        last = first;
    });
}

namespace {

// Return the first warp of each warpgroup that runs an instruction. Fail if not all threads of its four warps run it.
std::vector<uint32_t> warpgroups_of(Batch& batch, const Instruction& ins) {
    std::vector<uint32_t> all;
    uint32_t warps = 0;
    const auto check = [&] {
        if (all.empty() || warps == 4) return;
        batch.fail("not all 128 threads of the warpgroup of " + batch.coordinates(all.back() * kWarp) + " run it");
    };
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t mask) {
        if (all.empty() || all.back() != first_warp_of(batch, warp)) {
            check();
            all.push_back(first_warp_of(batch, warp));
            warps = 0;
        }
        warps += mask == ~0u;
    });
    check();
    return all;
}

uint64_t same_descriptor(Batch& batch, const Row& row, uint32_t first_warp) {
    const uint64_t first = batch.value(row, first_warp * kWarp);
    for (uint32_t lane = first_warp * kWarp; lane < (first_warp + 4) * kWarp; lane++)
        if (batch.value(row, lane) != first) batch.fail("the threads of a warpgroup have different descriptors");
    return first;
}

void multiply(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<WgmmaForm>(ins);
    const int n = form.product.n, k = form.product.k;
    const Type a_type = form.product.a, b_type = form.product.b;
    for (const uint32_t first_warp : warpgroups_of(batch, ins)) {
        Pieces pieces;
        const auto tile_of = [&](Type type, int extent, bool mn_major, const Row& descriptor) {
            const uint32_t bytes = std::max(1, number_bits(type) / 8);
            return read_tile(batch, batch.block_of(first_warp), false, same_descriptor(batch, descriptor, first_warp),
                             {uint32_t(extent), kTileRowBytes / bytes, bytes, mn_major}, pieces);
        };
        const std::vector<uint8_t> b_bytes = tile_of(b_type, n, form.b_mn_major, form.b);
        const std::vector<uint8_t> a_bytes =
            form.a ? tile_of(a_type, 64, form.a_mn_major, form.a) : std::vector<uint8_t>();
        start(batch, first_warp, form, std::move(pieces));
        const size_t depth = size_t(k);
        std::vector<double> rows(size_t(n) * depth), b(rows.size());
        decode(b_type, number_bits(b_type), b_bytes.data(), n * k, rows.data());
        for (size_t first = 0; first < rows.size(); first += 8 * depth) transpose(&rows[first], k, &b[first]);
        const bool adds_d = bool(batch.value(form.scale_d, first_warp * kWarp)) != form.scale_d_inverted;
        for (uint32_t quarter = 0; quarter < 4; quarter++) {  // 16 rows of A and D per warp
            const uint32_t first = (first_warp + quarter) * kWarp;
            const Fragments inputs(batch, form.inputs, first), accumulators(batch, form.accumulators, first);
            const int bits = number_bits(a_type);
            alignas(64) double a[16 * 256];
            if (form.a) decode(a_type, bits, &a_bytes[size_t(16) * quarter * kTileRowBytes], 16 * k, a);
            else decode_registers(a_type, bits, inputs.registers, 4, a);
            const Registers d = accumulators.registers;
            multiply_tiles(form.product, {a, 16, k, form.a ? k : 128 / bits}, b.data(), adds_d ? d : nullptr, d);
        }
        const uint64_t operations = uint64_t(2) * 64 * uint64_t(n) * uint64_t(k);
        count_operations(batch, "mma", a_type, operations);
        count_operations(batch, "wgmma", a_type, operations);
        batch.count("wgmma.shared_bytes", uint64_t(n + (form.a ? 64 : 0)) * kTileRowBytes);
    }
}

void fence(Batch& batch, const Instruction& ins) {
    for (const uint32_t first_warp : warpgroups_of(batch, ins)) {
        Warpgroup& group = batch.work().warpgroups[first_warp];
        group.fenced = true;
        group.touched.clear();
    }
}

void commit(Batch& batch, const Instruction& ins) {
    for (const uint32_t first_warp : warpgroups_of(batch, ins)) batch.work().warpgroups[first_warp].committed++;
}

void wait(Batch& batch, const Instruction& ins) {
    const std::vector<uint32_t> groups = warpgroups_of(batch, ins);
    for (const uint32_t first_warp : groups) {
        auto& [committed, in_flight, fenced, touched] = batch.work().warpgroups[first_warp];
        for (; !in_flight.empty() && in_flight.front().group < committed - ins.immediate; in_flight.pop_front())
            if (in_flight.front().read) batch.races()->end_read(*in_flight.front().read);
    }
    batch.count("wgmma.waits", groups.size());
}

MatrixMultiply product_of(const Source& ins) {
    if (ins.has("sp")) refuse("a sparse matrix A");
    const Modifiers marks = without(ins.modifiers, {"mma_async", "satfinite", "and", "popc"});
    if (marks.size() != 6 || marks[0] != "sync" || marks[1] != "aligned") refuse();
    const auto [m, n, k] = extents_of(marks[2]);
    const Type d = number_type(marks[3]), a = number_type(marks[4]), b = number_type(marks[5]);
    if (m != 64 || n <= 0 || k <= 0 || !sums_in(a, d) || a == Type::kF64 || a == Type::kS4 || a == Type::kU4) refuse();
    if (!may_multiply(a, b)) refuse("A in ." + marks[4] + " with B in ." + marks[5]);
    const bool fits = d == Type::kS32 ? n == 8 || n == 24 || (n % 16 == 0 && n <= 256) : n % 8 == 0 && n <= 256;
    if (!fits || k * number_bits(a) != 8 * int(kTileRowBytes)) refuse("shape " + marks[2] + " in ." + marks[4]);
    if ((a == Type::kB1) != ins.has("popc")) refuse();
    return {64, n, k, a, b, d, d, ins.has("satfinite")};
}

// Return an option of the instruction: one of two values, by default the first.
int64_t option(const Source& ins, size_t i, const char* name, int64_t first, int64_t second) {
    if (i >= ins.operands.size()) return first;
    const std::string refused = joined(name, " other than ", first, " and ", second);
    const int64_t value = literal(ins.operands[i], refused);
    if (value != first && value != second) refuse(refused);
    return value;
}

void decode_multiply(Decoder& decoder, const Source& ins) {
    WgmmaForm form;
    form.product = product_of(ins);
    form.name = ins.modifiers;
    const Operand& a = ins.operands[1];
    const bool in_registers = a.kind == OperandKind::kVector;
    const Type d_type = form.product.d, a_type = form.product.a;
    form.accumulators =
        fragment(decoder, ins.operands[0], d_type, form.product.n / (d_type == Type::kF16 ? 4 : 2), true);
    if (in_registers) form.inputs = fragment(decoder, a, a_type, 4, false);
    else form.a = decoder.value(a, "b64");
    form.b = decoder.value(ins.operands[2], "b64");
    for (const Row& row : form.accumulators) form.accumulator_rows.insert(row.index);
    for (const Row& row : form.inputs) form.input_rows.insert(row.index);
    if (a_type == Type::kF16 || a_type == Type::kBf16) {
        if (!in_registers) form.a_mn_major = option(ins, 6, "imm-trans", 0, 1);
        form.b_mn_major = option(ins, in_registers ? 6 : 7, "imm-trans", 0, 1);
    }
    form.product.sign = int(option(ins, 4, "imm-scale", 1, -1) * option(ins, 5, "imm-scale", 1, -1));
    std::tie(form.scale_d, form.scale_d_inverted) = decoder.flag(ins.operands[3]);
    emit_form(decoder, multiply, std::move(form));
}

const Registration kWgmma({"wgmma"}, [](Decoder& decoder, const Source& ins) {
    const std::string& kind = ins.modifiers[0];
    if (kind == "mma_async") return decode_multiply(decoder, ins);
    if (Modifiers(ins.modifiers.begin() + 1, ins.modifiers.end()) != Modifiers{"sync", "aligned"}) refuse();
    if (kind == "fence") {
        decoder.emit(fence);
    } else if (kind == "commit_group") {
        decoder.emit(commit);
    } else {
        if (kind != "wait_group") refuse();
        decoder.emit(wait).immediate = literal(ins.operands[0]);
    }
});

}  // namespace
}  // namespace kernrec

// Matrix multiplication by a warpgroup: `wgmma.mma_async`, `wgmma.fence`, `wgmma.commit_group`, `wgmma.wait_group` (PTX
// ISA, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// The engine multiplies when the instruction is issued. WarpgroupOperations (pending.h) rejects register accesses
// before the wait. The race detector rejects writes to the tiles.
#include <algorithm>

#include "dispatch.h"
#include "pending.h"
#include "tensor_core.h"

namespace kernrec {

void touch_warpgroup_registers(Batch& batch, const Instruction& ins) {
    const uint32_t groups = (batch.warps_per_block + 3) / 4;
    int64_t last = -1;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        const int64_t group = batch.block_of(warp) * groups + warp % batch.warps_per_block / 4;
        if (group != last) batch.work().warpgroups.touch(uint32_t(group), ins.list, ins.modes);
        last = group;
    });
}

namespace {

struct Warpgroup {
    uint32_t number, first_warp;
};

// Return the warpgroups that run an instruction, which requires all threads of their four warps.
std::vector<Warpgroup> warpgroups_of(Batch& batch, const Instruction& ins) {
    const uint32_t groups = (batch.warps_per_block + 3) / 4;
    std::vector<Warpgroup> all;
    uint32_t warps = 0;
    const auto check = [&] {
        if (all.empty() || warps == 4) return;
        batch.fail("not all 128 threads of the warpgroup of " + batch.coordinates(all.back().first_warp * kWarp) +
                   " run it");
    };
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t mask) {
        const uint32_t block = batch.block_of(warp), within = warp % batch.warps_per_block;
        const uint32_t number = block * groups + within / 4;
        if (all.empty() || all.back().number != number) {
            check();
            all.push_back({number, warp - within % 4});
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
    const std::vector<Warpgroup> groups = warpgroups_of(batch, ins);
    std::vector<WgmmaOperands> operands(groups.size());
    std::vector<WgmmaTiles> tiles(groups.size());
    static const uint32_t* const kInRegisters[1] = {};
    for (size_t i = 0; i < groups.size(); i++) {
        WgmmaOperands& made = operands[i];
        made.b_descriptor = same_descriptor(batch, form.b, groups[i].first_warp);
        if (form.a) made.a_descriptor = same_descriptor(batch, form.a, groups[i].first_warp);
        else made.a_registers = kInRegisters;
        made.a_mn_major = form.a_mn_major;
        made.b_mn_major = form.b_mn_major;
        made.sign = form.sign;
        made.adds_d = form.adds_d;
        if (form.scale_d)
            made.adds_d = bool(batch.value(form.scale_d, groups[i].first_warp * kWarp)) != form.scale_d_inverted;
        tiles[i] = read_wgmma_tiles(batch, form.multiply, made, batch.block_of(groups[i].first_warp));
    }
    for (size_t i = 0; i < groups.size(); i++) {
        std::vector<size_t> places;
        if (batch.races()) {
            const size_t block = batch.flat({batch.block_of(groups[i].first_warp), 0});
            for (const uint32_t address : tiles[i].addresses) places.push_back(block + address);
        }
        batch.work().warpgroups.start(batch, groups[i].number, form, places);
    }
    for (size_t i = 0; i < groups.size(); i++)
        for (uint32_t quarter = 0; quarter < 4; quarter++) {
            const uint32_t first = (groups[i].first_warp + quarter) * kWarp;
            const Fragments<uint32_t> d(batch, form.accumulators, first);
            const Fragments<const uint32_t> a(batch, form.inputs, first);
            if (!form.a) operands[i].a_registers = a.from(0);
            wgmma_mma(batch, form.multiply, operands[i], tiles[i], int(quarter), d.from(0));
        }
}

void fence(Batch& batch, const Instruction& ins) {
    for (const Warpgroup& group : warpgroups_of(batch, ins)) batch.work().warpgroups.fence(group.number);
}

void commit(Batch& batch, const Instruction& ins) {
    for (const Warpgroup& group : warpgroups_of(batch, ins)) batch.work().warpgroups.commit(group.number);
}

void wait(Batch& batch, const Instruction& ins) {
    const std::vector<Warpgroup> groups = warpgroups_of(batch, ins);
    for (const Warpgroup& group : groups) batch.work().warpgroups.wait(batch, group.number, ins.immediate);
    batch.count("wgmma.waits", groups.size());
}

// Return an option of the instruction: one of two values, by default the first.
int64_t option(const Source& ins, size_t i, const char* name, int64_t first, int64_t second) {
    if (i >= ins.operands.size()) return first;
    const Operand& operand = ins.operands[i];
    if (operand.kind != OperandKind::kInteger || (operand.value != first && operand.value != second))
        refuse(std::string(name) + " other than " + std::to_string(first) + " and " + std::to_string(second));
    return operand.value;
}

std::vector<uint32_t> numbers_of(const std::vector<Row>& rows) {
    std::vector<uint32_t> numbers;
    for (const Row& row : rows) numbers.push_back(row.index);
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

void decode_multiply(Decoder& decoder, const Source& ins) {
    WgmmaForm form;
    form.multiply = form_from(wgmma_form, ins);
    form.name = ins.modifiers;
    if (ins.operands.size() < 4) refuse();
    const Operand &a = ins.operands[1], &scale = ins.operands[3];
    const bool in_registers = a.kind == OperandKind::kVector;
    const auto registers = [&](const Operand& operand, NumberType type, int count) {
        std::vector<Row> rows;
        for (const Operand& item : elements(operand))
            if (item.kind == OperandKind::kRegister && decoder.plain(item).width == 32)
                rows.push_back(decoder.plain(item));
        if (int(rows.size()) != count || rows.size() != elements(operand).size())
            refuse("a fragment of ." + std::string(number_name(type)) + " takes " + std::to_string(count) +
                   " registers of 32 bits");
        return rows;
    };
    form.accumulators = registers(ins.operands[0], form.multiply.d, form.multiply.registers_d());
    if (in_registers) form.inputs = registers(a, form.multiply.a, 4);
    else form.a = decoder.value(a, "b64");
    form.b = decoder.value(ins.operands[2], "b64");
    form.accumulator_rows = numbers_of(form.accumulators);
    form.input_rows = numbers_of(form.inputs);
    if (form.multiply.may_transpose()) {
        if (!in_registers) form.a_mn_major = option(ins, 6, "imm-trans", 0, 1);
        form.b_mn_major = option(ins, in_registers ? 6 : 7, "imm-trans", 0, 1);
    }
    form.sign = int(option(ins, 4, "imm-scale", 1, -1) * option(ins, 5, "imm-scale", 1, -1));
    if (scale.kind == OperandKind::kInteger) form.adds_d = scale.value != 0;
    else std::tie(form.scale_d, form.scale_d_inverted) = decoder.flag(scale);
    emit_form(decoder, multiply, std::move(form));
}

const Registration kWgmma({"wgmma"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.empty()) refuse();
    const std::string& kind = ins.modifiers[0];
    if (kind == "mma_async") return decode_multiply(decoder, ins);
    if (Modifiers(ins.modifiers.begin() + 1, ins.modifiers.end()) != Modifiers{"sync", "aligned"}) refuse();
    if (kind == "fence") {
        decoder.emit(fence);
    } else if (kind == "commit_group") {
        decoder.emit(commit);
    } else {
        if (kind != "wait_group" || ins.operands.empty() || ins.operands[0].kind != OperandKind::kInteger) refuse();
        decoder.emit(wait).immediate = ins.operands[0].value;
    }
});

}  // namespace
}  // namespace kernrec

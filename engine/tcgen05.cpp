// Tensor memory of data-center Blackwell: `tcgen05` (PTX ISA, section "TensorCore 5th Generation Family Instructions").
// tensor_memory.cpp computes; TensorOperations (pending.h) tracks operations in flight.
#include <stdexcept>

#include "dispatch.h"
#include "pending.h"
#include "tensor_core.h"

namespace kernrec {
namespace {

// Convert an error of tensor memory to an error of the instruction.
template <class Act>
auto checked(Batch& batch, Act act) {
    try {
        return act();
    } catch (const std::invalid_argument& error) {
        batch.fail(error.what());
    }
}

TensorMemory& memory_of(Batch& batch, uint32_t lane) { return batch.work().tensor.memories[batch.lane_block(lane)]; }

struct AllocateForm {
    Instruction target;  // destination of the address
    Row columns;
};

void allocate(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<AllocateForm>(ins);
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t warp, uint32_t lane, uint32_t) {
        const uint32_t address = checked(batch, [&] {
            return memory_of(batch, lane).allocate(uint32_t(batch.value(form.columns, lane)), batch.source);
        });
        Instruction store = form.target;
        store.guard = {};
        const std::vector<Resolved> all = batch.access_of(store, 4, AccessKind::kWrite, warp, 1);
        for (const Resolved& at : all) {
            std::memcpy(at.places[0], &address, 4);
            batch.count_access(store, at, 4, AccessKind::kWrite);
        }
        if (batch.races()) batch.check_races(store, all, 4, true, false);
    });
}

void release(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t lane, uint32_t) {
        checked(batch, [&] {
            memory_of(batch, lane).release(uint32_t(batch.value(ins.a, lane)), uint32_t(batch.value(ins.b, lane)));
        });
    });
}

void relinquish(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t lane, uint32_t) { memory_of(batch, lane).relinquish(); });
}

void wait(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    uint64_t warps = 0;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        batch.work().tensor.wait(batch, warp, ins.mode ? TensorUse::kLoaded : TensorUse::kStored);
        warps++;
    });
    batch.count("tcgen05.waits", warps);
}

void fence(Batch& batch, const Instruction& ins) {
    TensorFences& fences = batch.work().tensor.fences;
    fences.tick();
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) { fences.fence(warp, ins.mode); });
}

// --- ld and st ---

struct MoveForm {
    TensorMove move;
    bool store = false;
    uint32_t split_columns = 0;
    Instruction address;
    std::vector<Row> registers;
};

// Return the cells of a warp's registers. All threads must have the same address, in lanes that the warp can access.
Cells cells_of(Batch& batch, const MoveForm& form, uint32_t warp) {
    const uint64_t address = address_at(batch, form.address, warp * kWarp);
    for (uint32_t lane = warp * kWarp; lane < (warp + 1) * kWarp; lane++)
        if (address_at(batch, form.address, lane) != address)
            batch.fail("the threads of a warp have different addresses");
    const uint32_t lane = uint32_t(address >> 16) & 0xFFFF, within = warp % batch.warps_per_block % 4;
    if (lane != 32 * within && (form.move.shape == "32x32b" || lane != 32 * within + 16))
        batch.fail("lane " + std::to_string(lane) + " of tensor memory is out of reach: warp " +
                   std::to_string(within) + " of a warpgroup can only access lanes from " +
                   std::to_string(32 * within) + " on");
    return tensor_move_cells(form.move, uint32_t(address), form.split_columns);
}

void move(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<MoveForm>(ins);
    batch.require_whole_warps(ins);
    TensorOperations& tensor = batch.work().tensor;
    const uint32_t halves = form.move.packed ? 2 : 1;
    uint64_t warps = 0;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t) {
        warps++;
        const uint32_t block = batch.block_of(warp);
        Cells cells = cells_of(batch, form, warp);
        std::vector<uint32_t> values(cells.size());
        const size_t count = form.registers.size();
        for (size_t r = 0; r < count && form.store; r++)
            for (uint32_t t = 0; t < kWarp; t++) {
                const uint32_t value = batch.row<uint32_t>(form.registers[r])[first + t];
                uint32_t* to = &values[(t * count + r) * halves];
                if (halves == 1) *to = value;
                else to[0] = value & 0xFFFF, to[1] = value >> 16;
            }
        checked(batch, [&] {
            form.store ? tensor.memories[block].store(cells, values.data())
                       : tensor.memories[block].load(cells, values.data());
        });
        for (size_t r = 0; r < count && !form.store; r++)
            for (uint32_t t = 0; t < kWarp; t++) {
                const uint32_t* from = &values[(t * count + r) * halves];
                batch.row<uint32_t>(form.registers[r])[first + t] =
                    halves == 1 ? *from : (from[0] & 0xFFFF) | from[1] << 16;
            }
        using Use = TensorUse;
        if (form.store) {
            tensor.fences.check(batch, warp, {Use::kLoaded, Use::kStored, Use::kComputed}, block, cells);
            tensor.note_store(warp, std::move(cells));
        } else {
            tensor.fences.check(batch, warp, {Use::kStored, Use::kComputed}, block, cells);
            tensor.note_load(warp, std::move(cells));
        }
    });
    batch.count(form.store ? "tensor_memory.store_bytes" : "tensor_memory.load_bytes",
                warps * kWarp * form.registers.size() * 4 * halves);
}

void decode_move(Decoder& decoder, const Source& ins) {
    MoveForm form;
    form.move = form_from(tensor_move_form, ins);
    form.store = ins.modifiers[0] == "st";
    std::vector<Operand> operands = ins.operands;
    const auto take = [&](size_t i) {
        if (i >= operands.size()) refuse();
        const Operand operand = operands[i];
        operands.erase(operands.begin() + int64_t(i));
        return operand;
    };
    form.address = decoder.access(take(form.store ? 0 : 1), Space::kGeneric);
    if (form.move.shape == "16x32bx2") {
        const Operand split = take(form.store ? 0 : operands.size() - 1);
        if (split.kind != OperandKind::kInteger || split.value < 0 || split.value > 0xFFFF)
            refuse("a distance of the halves that is no literal");
        form.split_columns = uint32_t(split.value);
    }
    if (operands.size() != 1) refuse();
    const std::vector<Operand> items = elements(operands[0]);
    if (int(items.size()) != form.move.registers)
        refuse(std::to_string(items.size()) + " registers where " + std::to_string(form.move.registers) +
               " are expected");
    for (const Operand& item : items)
        form.registers.push_back(form.store ? decoder.read(item, "b32") : decoder.write(item, "b32"));
    emit_form(decoder, move, std::move(form));
}

// --- mma, cp and commit ---

using Blocks = std::vector<std::pair<uint32_t, TensorMemory*>>;

Blocks blocks_of(Batch& batch, std::initializer_list<uint32_t> blocks) {
    Blocks made;
    for (const uint32_t block : blocks) made.emplace_back(block, &batch.work().tensor.memories[block]);
    return made;
}

void require_pair(Batch& batch) {
    if (batch.cluster_blocks() % 2)
        batch.fail("a pair of thread blocks in a cluster of " + std::to_string(batch.cluster_blocks()));
}

struct MultiplyForm {
    TensorMultiply multiply;
    Instruction d, a_address, scale_a, scale_b;
    Row a, b, says;  // descriptors; without `a`, A is in tensor memory
    std::vector<Row> disabled;
    Row enable;
    bool enable_inverted = false, enabled = true;
    int shift = 0;
};

void multiply(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<MultiplyForm>(ins);
    const auto column = [&](const Instruction& address, uint32_t lane) {
        return uint32_t(address_at(batch, address, lane));
    };
    each_lane(batch, ins, [&](uint32_t lane) {
        checked(batch, [&] {
            const InstructionDescriptor says =
                instruction_descriptor(uint32_t(batch.value(form.says, lane)), form.multiply);
            const uint32_t block = batch.lane_block(lane);
            if (form.multiply.ctas == 2) require_pair(batch);
            const Blocks blocks =
                form.multiply.ctas == 1 ? blocks_of(batch, {block}) : blocks_of(batch, {block & ~1u, block | 1u});
            std::vector<uint32_t> disabled;
            for (const Row& row : form.disabled) disabled.push_back(uint32_t(batch.value(row, lane)));
            TensorOperands operands{};
            operands.d_address = column(form.d, lane);
            operands.a_in_tensor_memory = !form.a;
            operands.a = form.a ? batch.value(form.a, lane) : column(form.a_address, lane);
            operands.b_descriptor = batch.value(form.b, lane);
            if (form.multiply.vector) {
                operands.scale_a_address = column(form.scale_a, lane);
                operands.scale_b_address = column(form.scale_b, lane);
            }
            operands.disabled = disabled.empty() ? nullptr : disabled.data();
            operands.adds_d = form.enable ? bool(batch.value(form.enable, lane)) != form.enable_inverted : form.enabled;
            operands.divide_by_power = form.shift;
            tcgen05_mma(batch, form.multiply, says, operands, blocks,
                        [&](const TensorOperation& operation) { batch.work().tensor.issue(batch, lane, operation); });
        });
    });
}

void decode_multiply(Decoder& decoder, const Source& ins) {
    MultiplyForm form;
    form.multiply = form_from(tensor_multiply_form, ins);
    if (ins.operands.size() < 5) refuse();
    form.d = decoder.access(ins.operands[0], Space::kGeneric);
    const Operand& a = ins.operands[1];
    if (a.kind == OperandKind::kAddress) form.a_address = decoder.access(a, Space::kGeneric);
    else form.a = decoder.value(a, "b64");
    form.b = decoder.value(ins.operands[2], "b64");
    form.says = decoder.value(ins.operands[3], "u32");
    size_t next = 4;
    const auto take = [&]() -> const Operand& {
        if (next >= ins.operands.size()) refuse();
        return ins.operands[next++];
    };
    if (form.multiply.vector) {
        form.scale_a = decoder.access(take(), Space::kGeneric);
        form.scale_b = decoder.access(take(), Space::kGeneric);
    }
    if (next < ins.operands.size() && ins.operands[next].kind == OperandKind::kVector) {
        for (const Operand& item : take().items) form.disabled.push_back(decoder.value(item, "u32"));
        if (form.disabled.size() != 4u * unsigned(form.multiply.ctas))
            refuse(std::to_string(form.disabled.size()) + " masks of lanes");
    }
    const Operand& enable = take();
    if (enable.kind == OperandKind::kInteger) form.enabled = enable.value != 0;
    else std::tie(form.enable, form.enable_inverted) = decoder.flag(enable);
    if (next < ins.operands.size()) {
        const Operand& shift = take();
        if (shift.kind != OperandKind::kInteger || shift.value < -1000 || shift.value > 1000) refuse();
        form.shift = int(shift.value);
    }
    if (next != ins.operands.size()) refuse();
    emit_form(decoder, multiply, std::move(form));
}

struct CopyForm {
    TensorCopy copy;
    Instruction address;
    Row descriptor;
};

void copy(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CopyForm>(ins);
    each_lane(batch, ins, [&](uint32_t lane) {
        checked(batch, [&] {
            const uint32_t block = batch.lane_block(lane);
            if (form.copy.ctas == 2) require_pair(batch);
            const Blocks blocks =
                form.copy.ctas == 1 ? blocks_of(batch, {block}) : blocks_of(batch, {block, block ^ 1u});
            tcgen05_cp(batch, form.copy, uint32_t(address_at(batch, form.address, lane)),
                       batch.value(form.descriptor, lane), blocks,
                       [&](const TensorOperation& operation) { batch.work().tensor.issue(batch, lane, operation); });
        });
    });
}

struct CommitForm {
    Instruction barrier;
    Row mask;
};

void commit(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CommitForm>(ins);
    for (const LanePlace& use : barriers_of(batch, form.barrier)) {
        std::vector<SharedPlace> places{use.place};
        if (form.mask) {
            const uint32_t blocks = batch.cluster_blocks(), first = use.place.block / blocks * blocks;
            places.clear();
            for (uint32_t rank = 0; rank < blocks; rank++)
                if (batch.value(form.mask, use.lane) >> rank & 1) places.push_back({first + rank, use.place.byte});
        }
        batch.work().tensor.commit(batch, use.lane, std::move(places));
    }
}

const Registration kTcgen05({"tcgen05"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.empty()) refuse();
    const std::string& kind = ins.modifiers[0];
    const auto operands = [&](size_t count) {
        if (ins.operands.size() < count) refuse();
    };
    if (kind == "ld" || kind == "st") return decode_move(decoder, ins);
    if (kind == "mma") return decode_multiply(decoder, ins);
    if (kind == "alloc") {
        operands(2);
        const Space space = ins.has("shared") ? Space::kShared : Space::kGeneric;
        emit_form(decoder, allocate,
                  AllocateForm{decoder.access(ins.operands[0], space), decoder.value(ins.operands[1], "u32")});
    } else if (kind == "dealloc") {
        operands(2);
        const Row a = decoder.value(ins.operands[0], "u32"), b = decoder.value(ins.operands[1], "u32");
        decoder.emit(release, {}, a, b);
    } else if (kind == "relinquish_alloc_permit") {
        decoder.emit(relinquish);
    } else if (kind == "wait" && ins.modifiers.size() > 1 && (ins.modifiers[1] == "ld" || ins.modifiers[1] == "st")) {
        decoder.emit(wait).mode = ins.modifiers[1] == "ld";
    } else if (kind == "fence" && ins.modifiers.size() > 1 &&
               (ins.modifiers[1] == "before_thread_sync" || ins.modifiers[1] == "after_thread_sync")) {
        decoder.emit(fence).mode = ins.modifiers[1] == "before_thread_sync";
    } else if (kind == "cp") {
        operands(2);
        const TensorCopy form = form_from(tensor_copy_form, ins);
        emit_form(
            decoder, copy,
            CopyForm{form, decoder.access(ins.operands[0], Space::kGeneric), decoder.value(ins.operands[1], "b64")});
    } else if (kind == "commit") {
        operands(ins.has("multicast") ? 2 : 1);
        const Space space = ins.has("shared") ? Space::kShared : Space::kGeneric;
        CommitForm form{decoder.access(ins.operands[0], space), {}};
        if (ins.has("multicast")) form.mask = decoder.value(ins.operands[1], "u16");
        emit_form(decoder, commit, std::move(form));
    } else {
        refuse();
    }
});

}  // namespace
}  // namespace kernrec

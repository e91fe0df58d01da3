// Connects the tensor-core instructions of `tensor_core.h` to the registers of a batch.
#include "tensor_core.h"

#include "decoder.h"
#include "lanes.h"

namespace kernrec {
namespace {

std::vector<Row> rows_of(Decoder& decoder, const Operand& operand, NumberType type, int count, bool write) {
    const std::string bits = "b" + std::to_string(element_type(type).register_bits());
    std::vector<Row> rows;
    for (const Operand& item : operand.kind == OperandKind::kVector ? operand.items : std::vector<Operand>{operand})
        rows.push_back(write ? decoder.write(item, bits) : decoder.read(item, bits));
    if (int(rows.size()) != count) refuse("a fragment takes " + std::to_string(count) + " registers of " + bits.substr(1) + " bits");
    return rows;
}

// The fragments of one warp, as pointers to its part of each row.
template <class T>
struct Fragments {
    const T *a[64], *b[64], *c[64];
    T* d[64];

    Fragments(Batch& batch, const Instruction& ins, uint32_t first) {
        size_t next = 0;
        auto fill = [&](auto** to, uint32_t count) {
            for (uint32_t i = 0; i < count; i++) to[i] = batch.row<T>(ins.list[next++]) + first;
        };
        fill(a, ins.modes[0]);
        fill(b, ins.modes[1]);
        fill(c, ins.modes[2]);
        fill(d, ins.modes[3]);
    }
};

MatrixMultiply form_of(const Instruction& ins) {
    MatrixMultiply form{int(ins.modes[4]), int(ins.modes[5]), NumberType(ins.modes[6]), NumberType(ins.modes[7]),
                        NumberType(ins.modes[8]), NumberType(ins.modes[9])};
    form.saturates = ins.modes[10];
    form.counts_xor = ins.modes[11];
    return form;
}

void multiply(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    const MatrixMultiply form = form_of(ins);
    uint64_t warps = 0;
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
        warps++;
        if (form.a == NumberType::kF64) {
            const Fragments<uint64_t> all(batch, ins, first);
            mma_sync_f64(form, all.a, all.b, all.c, all.d);
        } else {
            const Fragments<uint32_t> all(batch, ins, first);
            mma_sync(form, all.a, all.b, all.c, all.d);
        }
    });
    if (warps && batch.launch.count) count_operations(batch, "mma", form.a, form.operations() * warps);
}

const Registration kMultiply({"mma"}, [](Decoder& decoder, const Source& ins) {
    if (ins.has("kind")) refuse("the engine does not know it yet");
    MatrixMultiply form;
    try {
        form = mma_form(ins.modifiers);
    } catch (const UnsupportedForm& error) {
        refuse(error.what());
    }
    if (ins.operands.size() != 4) refuse();
    const std::vector<Row> a = rows_of(decoder, ins.operands[1], form.a, form.registers_a(), false);
    const std::vector<Row> b = rows_of(decoder, ins.operands[2], form.b, form.registers_b(), false);
    const std::vector<Row> c = rows_of(decoder, ins.operands[3], form.c, form.registers_c(), false);
    const std::vector<Row> d = rows_of(decoder, ins.operands[0], form.d, form.registers_d(), true);
    Instruction& made = decoder.emit(multiply);
    for (const std::vector<Row>& rows : {a, b, c, d}) {
        made.list.insert(made.list.end(), rows.begin(), rows.end());
        made.modes.push_back(uint32_t(rows.size()));
    }
    for (uint32_t mode : {uint32_t(form.m), uint32_t(form.k), uint32_t(form.a), uint32_t(form.b), uint32_t(form.c),
                          uint32_t(form.d), uint32_t(form.saturates), uint32_t(form.counts_xor)})
        made.modes.push_back(mode);
});

}  // namespace
}  // namespace kernrec

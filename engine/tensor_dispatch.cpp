// Connects mma and wmma to the engine (PTX ISA, section "Warp Level Matrix Multiply-Accumulate Instructions").
#include "dispatch.h"
#include "tensor_core.h"

namespace kernrec {

std::vector<Row> fragment(Decoder& decoder, const Operand& operand, NumberType type, int registers, bool write) {
    const uint32_t width = uint32_t(element_type(type).register_bits());
    const std::string register_type = width == 64 ? "b64" : "b32";
    std::vector<Row> rows;
    for (const Operand& item : elements(operand)) {
        const bool is_register = item.kind == OperandKind::kRegister;
        if (is_register && decoder.plain(item).width != width) rows.clear();
        else rows.push_back(write ? decoder.write(item, register_type) : decoder.read(item, register_type));
    }
    if (int(rows.size()) != registers)
        refuse("a fragment of ." + std::string(number_name(type)) + " takes " + std::to_string(registers) +
               " registers of " + std::to_string(width) + " bits");
    return rows;
}

namespace {

// mma and wmma: `ins.list` contains the registers of A, B, C and D in sequence.
void multiply(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<WmmaMultiply>(ins);
    batch.require_whole_warps(ins);
    const size_t b = size_t(form.registers_a), c = b + size_t(form.registers_b), d = c + size_t(form.registers_c);
    uint32_t warps = 0;
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
        ++warps;
        if (form.tile.a == NumberType::kF64) {
            const Fragments<uint64_t> all(batch, ins.list, first);
            mma_sync_f64(form.tile, all.from(0), all.from(b), all.from(c), all.from(d));  // there is only one tile
        } else {
            const Fragments<uint32_t> all(batch, ins.list, first);
            wmma_mma(form, all.from(0), all.from(b), all.from(c), all.from(d));
        }
    });
    if (warps) count_operations(batch, "mma", form.tile.a, form.tile.operations() * uint64_t(form.tiles()) * warps);
}

void emit_multiply(Decoder& decoder, const Source& ins, const WmmaMultiply& form) {
    if (ins.operands.size() != 4) refuse();
    std::vector<Row> rows = fragment(decoder, ins.operands[1], form.tile.a, form.registers_a, false);
    append(rows, fragment(decoder, ins.operands[2], form.tile.b, form.registers_b, false));
    append(rows, fragment(decoder, ins.operands[3], form.tile.c, form.registers_c, false));
    append(rows, fragment(decoder, ins.operands[0], form.tile.d, form.registers_d, true));
    emit_form(decoder, multiply, form).list = std::move(rows);
}

// `ins.list` contains the registers of A, B, C, D and of the scale factors. `ins.modes` contains 16-bit rows, as pairs
// of width and index, for byte and thread of the factors of A and of B.
void run_scaled_mma(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ScaledMultiply>(ins);
    batch.require_whole_warps(ins);
    const size_t c_size = form.c == NumberType::kF16 ? 2 : 4, d_size = form.d == NumberType::kF16 ? 2 : 4;
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
        const Fragments<uint32_t> all(batch, std::vector<Row>(ins.list.begin(), ins.list.begin() + 6 + c_size + d_size),
                                      first);
        ScaleOperand scales[2];
        for (size_t i = 0; i < 2 && form.factors; ++i) {
            const Row* rows = &ins.list[6 + c_size + d_size + 3 * i];
            scales[i] = {batch.row<uint32_t>(rows[0]) + first, batch.row<uint16_t>(rows[1])[first],
                         batch.row<uint16_t>(rows[2])[first]};
        }
        scaled_mma(form, all.from(0), all.from(4), all.from(6), all.from(6 + c_size), scales[0], scales[1]);
        count_scaled_mma(batch, form);
    });
}

void decode_scaled_mma(Decoder& decoder, const Source& ins) {
    const ScaledMultiply form = form_from(scaled_mma_form, ins);
    if (ins.operands.size() != (form.factors ? 8u : 4u))
        refuse(std::to_string(ins.operands.size() - 4) + " operands of scale factors");
    const auto size_of = [](NumberType type) { return type == NumberType::kF16 ? 2 : 4; };
    std::vector<Row> rows = fragment(decoder, ins.operands[1], NumberType::kU8, 4, false);
    append(rows, fragment(decoder, ins.operands[2], NumberType::kU8, 2, false));
    append(rows, fragment(decoder, ins.operands[3], form.c, size_of(form.c), false));
    append(rows, fragment(decoder, ins.operands[0], form.d, size_of(form.d), true));
    for (size_t i = 4; i < ins.operands.size(); i += 2) {
        const Operand& place = ins.operands[i + 1];
        if (place.kind != OperandKind::kVector || place.items.size() != 2)
            refuse("byte and thread of the scale factors");
        rows.push_back(decoder.read(ins.operands[i], "u32"));
        for (const Operand& item : place.items) rows.push_back(decoder.read(item, "u16"));
    }
    emit_form(decoder, run_scaled_mma, form).list = std::move(rows);
}

const Registration kMma({"mma"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() < 4) refuse();
    if (ins.has("kind")) return decode_scaled_mma(decoder, ins);
    const MatrixMultiply tile = form_from(mma_form, ins);
    emit_multiply(decoder, ins,
                  {tile, 8, tile.registers_a(), tile.registers_b(), tile.registers_c(), tile.registers_d()});
});

// --- wmma ---

// `ins.a` and `ins.immediate` are the address, `ins.b` the stride in elements (none for contiguous), `ins.c` a row for
// the addresses of one piece, and `ins.list` the registers.
void run_wmma_move(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<WmmaMove>(ins);
    batch.require_whole_warps(ins);
    const int bits = form.bits(), p = element_type(form.type).per_register();
    const uint32_t register_bytes = uint32_t(element_type(form.type).register_bits()) / 8;
    const AccessKind kind = form.store ? AccessKind::kWrite : AccessKind::kRead;
    uint64_t* addresses = batch.row<uint64_t>(ins.c);
    Instruction moved = ins;
    moved.a = ins.c;
    moved.immediate = 0;
    for (const WmmaPiece& piece : form.pieces) {
        each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
            for (uint32_t lane = 0; lane < kWarp; ++lane) {
                const uint64_t base = ins.a.width == 32 ? batch.row<uint32_t>(ins.a)[first + lane]
                                                        : batch.row<uint64_t>(ins.a)[first + lane];
                const int64_t stride = ins.b ? batch.row<uint32_t>(ins.b)[first + lane] : form.default_stride();
                const int64_t element = form.by_row ? piece.row[lane] * stride + piece.column[lane]
                                                    : piece.column[lane] * stride + piece.row[lane];
                addresses[first + lane] = base + uint64_t(ins.immediate) + uint64_t(element * bits / 8);
            }
        });
        const uint32_t bytes = form.piece_bytes(piece), unit = form.unit_bytes(piece), units = bytes / unit;
        const std::vector<Resolved>& all = batch.access(moved, bytes, kind);
        for (const Resolved& at : all) {
            for (uint32_t i = 0; i < units; ++i) {
                const int element = piece.first_element + int(i) * piece.elements / int(units);
                const uint32_t shift = uint32_t(element % p) * uint32_t(bits) / 8;
                // Several registers may hold the same element; a load fills all of them.
                const int stop = form.store ? element / p + 1 : form.registers;
                for (int r = element / p; r < stop; r += form.distinct) {
                    uint8_t* row =
                        batch.row<uint8_t>(ins.list[size_t(r)]) + size_t(at.warp) * kWarp * register_bytes + shift;
                    for (const uint32_t lane : LanesOf(at.mask)) {
                        uint8_t *value = row + register_bytes * lane, *place = at.places[lane] + unit * i;
                        std::memcpy(form.store ? place : value, form.store ? value : place, unit);
                    }
                }
            }
            batch.count_access(moved, at, bytes, kind);
        }
        batch.watch(all, bytes, unit, kind);
        if (batch.races()) batch.check_races(moved, all, bytes, form.store, false);
    }
}

const Registration kWmma({"wmma"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 5 || ins.operands.size() < 2) refuse();
    if (ins.modifiers[0] != "load" && ins.modifiers[0] != "store")
        return emit_multiply(decoder, ins, form_from(wmma_multiply_form, ins));
    const WmmaMove form = form_from(wmma_move_form, ins);
    const auto [base, offset] = decoder.address(ins.operands[form.store ? 0 : 1]);
    const std::vector<Row> rows =
        fragment(decoder, ins.operands[form.store ? 1 : 0], form.type, form.registers, !form.store);
    const Row stride = ins.operands.size() > 2 ? decoder.read(ins.operands[2], "u32") : Row{};
    const Row addresses = decoder.scratch(64);
    Instruction& made = emit_form(decoder, run_wmma_move, form);
    made.list = rows;
    made.a = base;
    made.b = stride;
    made.c = addresses;
    made.immediate = offset;
    made.space = space_of(ins);
    made.unit = 4;
});

}  // namespace
}  // namespace kernrec

// mma and wmma (PTX ISA, section "Warp Level Matrix Multiply-Accumulate Instructions"). Fragments of wmma have the
// layout of mma.sync, which tile_multiply.h describes.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "dispatch.h"
#include "tensor_core.h"
#include "text.h"

namespace kernrec {

namespace {

using Type = NumberType;
using ShapesByType = std::map<std::string, std::set<std::string>>;

// PTX ISA, section "mma", table of shapes.
const ShapesByType kMmaShapes = {{"f16", {"m16n8k8", "m16n8k16"}},
                                 {"bf16", {"m16n8k8", "m16n8k16"}},
                                 {"tf32", {"m16n8k4", "m16n8k8"}},
                                 {"e4m3", {"m16n8k16", "m16n8k32"}},
                                 {"e5m2", {"m16n8k16", "m16n8k32"}},
                                 {"s8", {"m8n8k16", "m16n8k16", "m16n8k32"}},
                                 {"u8", {"m8n8k16", "m16n8k16", "m16n8k32"}},
                                 {"s4", {"m8n8k32", "m16n8k32", "m16n8k64"}},
                                 {"u4", {"m8n8k32", "m16n8k32", "m16n8k64"}},
                                 {"b1", {"m8n8k128", "m16n8k128", "m16n8k256"}},
                                 {"f64", {"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"}}};

// PTX ISA, section "Warp-level Matrix Shape".
const std::set<std::string> kWideShapes = {"m16n16k16", "m32n8k16", "m8n32k16"};
const ShapesByType kWmmaInputs = {{"f16", kWideShapes}, {"bf16", kWideShapes},  {"s8", kWideShapes},
                                  {"u8", kWideShapes},  {"tf32", {"m16n16k8"}}, {"f64", {"m8n8k4"}},
                                  {"s4", {"m8n8k32"}},  {"u4", {"m8n8k32"}},    {"b1", {"m8n8k128"}}};
const ShapesByType kWmmaSums = {{"f16", kWideShapes},
                                {"f32", {"m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8"}},
                                {"s32", {"m16n16k16", "m32n8k16", "m8n32k16", "m8n8k32", "m8n8k128"}},
                                {"f64", {"m8n8k4"}}};

bool has_shape(const ShapesByType& shapes, const std::string& type, const std::string& shape) {
    const auto entry = shapes.find(type);
    return entry != shapes.end() && entry->second.count(shape);
}

bool one_of(Type type, std::initializer_list<Type> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
}

int registers_of(Type type, int elements, bool packed = false) {
    return elements * element_bits(type, packed) / (32 * register_bits(type));
}

struct Multiply {
    MatrixMultiply product;
    std::vector<Row> a, b, c;
    std::vector<Row> scales;  // scale factors, byte-id and thread-id for A, then for B
};

// Return the product of a shape and the types of D, A, B and C.
MatrixMultiply product_of(const Source& ins, const std::string& shape, const std::string* types) {
    const auto [m, n, k] = extents_of(shape);
    const auto type = [types](size_t i) { return number_type(types[i]); };
    return {m, n, k, type(1), type(2), type(3), type(0), ins.has("satfinite"), ins.has("xor")};
}

// Parse the modifiers of `mma.sync` without sparsity (PTX ISA, section "mma", also "Block Scaling"):
// sync.aligned.SHAPE.row.col[.satfinite][.kind::K[.block_scale[.scale_vec::V]]].d.a.b.c[.and|xor.popc][.scale]
MatrixMultiply mma_form(const Source& ins) {
    const bool scaled = ins.has("block_scale"), counts_bits = ins.has("popc");
    const Modifiers marks =
        without(ins.modifiers, {"satfinite", "kind", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4", "block_scale",
                                "scale_vec", "1X", "2X", "4X", "xor", "and", "popc"});
    if (marks.size() != (scaled ? 10u : 9u) || marks[0] != "sync" || marks[1] != "aligned" || marks[3] != "row" ||
        marks[4] != "col")
        refuse();
    const std::string& shape = marks[2];
    const std::string refused = joined("shape ", shape, " with A in .", marks[6], " and B in .", marks[7]);
    const bool packed = ins.has("mxf4") || ins.has("mxf4nvf4");
    if (ins.has("kind") ? shape != (packed ? "m16n8k64" : "m16n8k32") : !has_shape(kMmaShapes, marks[6], shape))
        refuse(refused);
    MatrixMultiply form = product_of(ins, shape, &marks[5]);
    if (!ins.has("kind")) {
        if (!sums_in(form.a, form.c) || !sums_in(form.a, form.d)) refuse();
        if (!may_multiply(form.a, form.b)) refuse(refused);
        if ((form.a == Type::kB1) != counts_bits || (counts_bits && form.counts_xor == ins.has("and"))) refuse();
        return form;
    }
    form.packed = packed;
    if (!scaled && !ins.has("f8f6f4")) refuse("no block scaling");
    if (scaled) {
        const int by_kind = ins.has("mxf8f6f4") ? 1 : ins.has("mxf4") ? 2 : 0;
        form.factors = ins.has("1X") ? 1 : ins.has("2X") ? 2 : ins.has("4X") ? 4 : by_kind;
        form.scale = number_type(marks.back());
        if (!form.factors || !one_of(form.scale, {Type::kUe8m0, Type::kUe4m3})) refuse("scale factors");
    }
    const auto is_small = [](Type type) { return is_narrow(type) || type == Type::kE4m3 || type == Type::kE5m2; };
    const auto is_sum = [](Type type) { return one_of(type, {Type::kF16, Type::kF32}); };
    if (scaled == ins.has("f8f6f4") || !is_small(form.a) || !is_small(form.b) || !is_sum(form.c) || !is_sum(form.d) ||
        (scaled && form.d != Type::kF32) || (packed && (form.a != Type::kE2m1 || form.b != Type::kE2m1)))
        refuse();
    return form;
}

void multiply(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<Multiply>(ins);
    const MatrixMultiply& product = form.product;
    batch.require_whole_warps(ins);
    const uint64_t warps = each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t) {
        if (ins.list.empty()) return;  // nothing needs the result
        const Fragments d(batch, ins.list, first), a(batch, form.a, first), b(batch, form.b, first);
        const Fragments c(batch, form.c, first);
        ScaleFactors scales[2];
        for (size_t i = 0; 3 * i < form.scales.size(); ++i) {
            const Row* rows = &form.scales[3 * i];
            scales[i] = {batch.row<uint32_t>(rows[0]) + first, batch.row<uint16_t>(rows[1])[first],
                         batch.row<uint16_t>(rows[2])[first]};
        }
        multiply_fragments(product, a.registers, b.registers, c.registers, d.registers, scales);
    });
    const uint64_t operations = uint64_t(2) * uint64_t(product.m) * uint64_t(product.n) * uint64_t(product.k);
    if (warps) count_operations(batch, "mma", product.a, operations * warps, product.packed);
}

// In wmma on f16, fragments of A and B take eight registers, because they hold every element twice.
constexpr int kHalfRegisters = 8;

void emit_multiply(Decoder& decoder, const Source& ins, const MatrixMultiply& product) {
    const auto rows = [&](size_t i, Type type, int height, int width) {
        const bool repeats = ins.opcode == "wmma" && type == Type::kF16 && (i == 1 || i == 2);
        const int registers = repeats ? kHalfRegisters : registers_of(type, height * width, product.packed);
        return fragment(decoder, ins.operands[i], type, registers, i == 0);
    };
    Multiply form{product,
                  rows(1, product.a, product.m, product.k),
                  rows(2, product.b, product.k, product.n),
                  rows(3, product.c, product.m, product.n),
                  {}};
    std::vector<Row> d = rows(0, product.d, product.m, product.n);
    for (size_t i = 4; i + 1 < ins.operands.size(); i += 2) {
        const Operand& place = ins.operands[i + 1];
        if (place.kind != OperandKind::kVector || place.items.size() != 2)
            refuse("byte and thread of the scale factors");
        form.scales.push_back(decoder.read(ins.operands[i], "u32"));
        for (const Operand& item : place.items) form.scales.push_back(decoder.read(item, "u16"));
    }
    emit_form(decoder, multiply, std::move(form)).list = std::move(d);
}

const Registration kMma({"mma"}, [](Decoder& decoder, const Source& ins) {
    const MatrixMultiply form = mma_form(ins);
    if (ins.operands.size() != (form.factors ? 8u : 4u))
        refuse(joined(int64_t(ins.operands.size()) - 4, " operands of scale factors"));
    emit_multiply(decoder, ins, form);
});

// --- wmma ---

void check_wmma_shape(const std::string& shape, const std::string& type, bool is_sum) {
    if (!has_shape(is_sum ? kWmmaSums : kWmmaInputs, type, shape)) refuse("shape " + shape + " in ." + type);
}

MatrixMultiply wmma_multiply_form(const Source& ins) {
    const bool counts_bits = ins.has("popc") || ins.has("xor") || ins.has("and");
    const Modifiers marks =
        without(ins.modifiers, {"mma", "sync", "aligned", "rn", "rz", "rm", "rp", "xor", "and", "popc", "satfinite"});
    if (marks.size() < 5 || !ins.has("sync")) refuse();
    Modifiers types(marks.begin() + 3, marks.end());
    if (types.size() == 2) types = {types[0], "f16", "f16", types[1]};  // f16 forms do not name A and B
    if (types.size() != 4 || (types[1] == "b1") != counts_bits) refuse();
    const std::string& shape = marks[2];
    check_wmma_shape(shape, types[1], false);
    check_wmma_shape(shape, types[3], true);
    check_wmma_shape(shape, types[0], true);
    const MatrixMultiply form = product_of(ins, shape, types.data());
    if (!may_multiply(form.a, form.b) || !sums_in(form.a, form.c) || !sums_in(form.a, form.d))
        refuse("shape " + shape + " with A in ." + types[1] + " and B in ." + types[2]);
    return form;
}

struct Move {
    bool store;
    char operand;  // a, b, c or d
    Type type;
    bool by_row;  // elements of a row are adjacent in memory
    int m, n, k;
    int registers;  // registers of the fragment
    int distinct;  // registers with distinct elements
    uint32_t default_stride;  // elements between rows or columns of a contiguous matrix

    bool is_sum() const { return operand == 'c' || operand == 'd'; }
};

Move move_form(const Source& ins) {
    const Modifiers& modifiers = ins.modifiers;
    Move form{};
    form.store = modifiers[0] == "store";
    if (modifiers[1].size() != 1 || !ins.has("sync")) refuse();
    form.operand = modifiers[1][0];
    form.by_row = ins.has("row");
    const auto shape = std::find_if(modifiers.begin() + 2, modifiers.end() - 1,
                                    [](const std::string& modifier) { return extents_of(modifier)[0] > 0; });
    const std::string operands = form.store ? "d" : "abc", &type = modifiers.back();
    if (operands.find(form.operand) == std::string::npos || form.by_row == ins.has("col")) refuse();
    form.type = number_type(type);
    check_wmma_shape(shape == modifiers.end() - 1 ? "" : *shape, type, form.is_sum());
    if (one_of(form.type, {Type::kS4, Type::kU4, Type::kB1}) && form.by_row != (form.operand == 'a'))
        refuse("a matrix " + modifiers[1] + " of ." + type + " by " + (form.by_row ? "row" : "col"));
    const auto [m, n, k] = extents_of(*shape);
    form.m = m, form.n = n, form.k = k;
    const int height = form.operand == 'b' ? k : m, width = form.operand == 'a' ? k : n;
    form.distinct = registers_of(form.type, height * width);
    const bool repeats = form.type == Type::kF16 && (form.operand == 'a' || form.operand == 'b');
    form.registers = repeats ? kHalfRegisters : form.distinct;
    form.default_stride = uint32_t(form.by_row ? width : height);
    return form;
}

// Operands: `a` and `immediate` give the address of the matrix. `b` is the stride in elements (none if contiguous). `c`
// is a temporary row for the address of each lane. `list` has the registers.
void move(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<Move>(ins);
    batch.require_whole_warps(ins);
    const int bits = element_bits(form.type), p = register_bits(form.type) / bits;  // elements per register
    const uint32_t register_bytes = uint32_t(register_bits(form.type)) / 8;
    const AccessKind kind = form.store ? AccessKind::kWrite : AccessKind::kRead;
    uint64_t* addresses = batch.row<uint64_t>(ins.c);
    Instruction moved = ins;
    moved.a = ins.c;
    moved.immediate = 0;
    const bool is_b = form.operand == 'b', is_sum = form.is_sum();
    // Each lane moves `elements` elements at once: `step` if they are adjacent in memory, or else one.
    const int step = is_sum ? 2 : p, outer = (is_b ? form.n : form.m) / 8,
              inner = is_sum ? form.n / 8 : form.k / (4 * p);
    const int elements = (is_sum ? form.by_row : form.by_row == (form.operand == 'a')) ? step : 1;
    for (int first = 0; first < outer * inner * step; first += elements) {
        const int number = first / step, i = is_b ? number / inner : number % outer;
        const int j = is_b ? number % inner : number / outer;
        each_lane(batch, ins, [&](uint32_t lane) {
            const int g = int(lane % kWarp) / 4, thread = int(lane % kWarp) % 4;
            const int across = 8 * i + g, along = (is_sum ? 8 * j : 4 * p * j) + step * thread + first % step;
            const int64_t stride = ins.b ? batch.row<uint32_t>(ins.b)[lane] : form.default_stride;
            const int64_t row = is_b ? along : across, column = is_b ? across : along;
            const int64_t element = form.by_row ? row * stride + column : column * stride + row;
            addresses[lane] = address_at(batch, ins, lane) + uint64_t(element * bits / 8);
        });
        const uint32_t bytes = uint32_t(elements * bits / 8);
        const uint32_t unit = elements == p && p > 1 ? 4 : uint32_t(bits / 8), units = bytes / unit;
        const std::vector<Resolved>& all = batch.access(moved, bytes, kind);
        for (const Resolved& at : all) {
            for (uint32_t piece = 0; piece < units; ++piece) {
                const int moving = first + int(piece) * elements / int(units);
                const uint32_t shift = uint32_t(moving % p) * uint32_t(bits) / 8;
                // A load fills all registers that hold the element.
                const int stop = form.store ? moving / p + 1 : form.registers;
                for (int r = moving / p; r < stop; r += form.distinct) {
                    uint8_t* row =
                        batch.row<uint8_t>(ins.list[size_t(r)]) + size_t(at.warp) * kWarp * register_bytes + shift;
                    for (const uint32_t lane : LanesOf(at.mask)) {
                        uint8_t *value = row + register_bytes * lane, *place = at.places[lane] + unit * piece;
                        std::memcpy(form.store ? place : value, form.store ? value : place, unit);
                    }
                }
            }
        }
        batch.record(moved, all, bytes, kind);
        batch.check_races(moved, all, bytes, form.store, false);
    }
}

const Registration kWmma({"wmma"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers[0] != "load" && ins.modifiers[0] != "store") {
        if (ins.operands.size() != 4) refuse();
        return emit_multiply(decoder, ins, wmma_multiply_form(ins));
    }
    const Move form = move_form(ins);
    std::vector<Row> rows = fragment(decoder, ins.operands[form.store ? 1 : 0], form.type, form.registers, !form.store);
    const Row stride = ins.operands.size() > 2 ? decoder.read(ins.operands[2], "u32") : Row{};
    const Row addresses = decoder.scratch(64);
    Instruction& made = decoder.emit_access(move, ins.operands[form.store ? 0 : 1], space_of(ins), std::move(rows));
    made.form = std::make_shared<const Move>(form);
    made.b = stride;
    made.c = addresses;
    made.unit = uint32_t(register_bits(form.type)) / 8;
});

}  // namespace

std::array<int, 3> extents_of(const std::string& shape) {
    const size_t n = shape.find('n'), k = shape.find('k');
    if (shape[0] != 'm' || n == std::string::npos || k == std::string::npos || k < n) return {-1, -1, -1};
    return {parse_int(shape.substr(1, n - 1)), parse_int(shape.substr(n + 1, k - n - 1)),
            parse_int(shape.substr(k + 1))};
}

Modifiers without(const Modifiers& modifiers, const std::set<std::string>& names) {
    Modifiers rest;
    for (const std::string& modifier : modifiers)
        if (!names.count(modifier)) rest.push_back(modifier);
    return rest;
}

std::vector<Row> fragment(Decoder& decoder, const Operand& operand, Type type, int registers, bool write) {
    const uint32_t width = uint32_t(register_bits(type));
    const std::string register_type = width == 64 ? "b64" : "b32";
    const Operands items = elements(operand);
    bool fits = int(items.size()) == registers;
    for (const Operand& item : items) fits &= item.kind != OperandKind::kRegister || decoder.plain(item).width == width;
    if (!fits)
        refuse(joined("a fragment of .", number_name(type), " takes ", registers, " registers of ", width, " bits"));
    std::vector<Row> rows;
    for (const Operand& item : items)
        rows.push_back(write ? decoder.write(item, register_type) : decoder.read(item, register_type));
    return rows;
}

bool sums_in(Type a, Type d) {
    if (one_of(a, {Type::kF16, Type::kE4m3, Type::kE5m2})) return one_of(d, {Type::kF16, Type::kF32});
    if (one_of(a, {Type::kBf16, Type::kTf32})) return d == Type::kF32;
    if (a == Type::kF64) return d == Type::kF64;
    return one_of(a, {Type::kS8, Type::kU8, Type::kS4, Type::kU4, Type::kB1}) && d == Type::kS32;
}

bool may_multiply(Type a, Type b) {
    const auto both = [&](Type first, Type second) { return one_of(a, {first, second}) && one_of(b, {first, second}); };
    return a == b || both(Type::kE4m3, Type::kE5m2) || both(Type::kS8, Type::kU8) || both(Type::kS4, Type::kU4);
}

void count_operations(Batch& batch, const char* unit, Type type, uint64_t operations, bool packed) {
    // Types with half the bits take half the time.
    const bool is_integer = type <= Type::kU8, is_small = element_bits(type, packed) <= 8;
    const std::string counted = is_integer ? "i8" : is_small ? "f16" : number_name(type);
    const int counted_bits = is_integer ? 8 : is_small ? 16 : element_bits(type);
    const std::string metric = unit + ("." + counted);
    batch.count(metric.c_str(), operations * uint64_t(element_bits(type, packed)) / uint64_t(counted_bits));
}

}  // namespace kernrec

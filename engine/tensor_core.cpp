// Forms and multiplication of mma.sync and wmma: see the header.
#include "tensor_core.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text.h"
#include "tile_multiply.h"

namespace kernrec {
namespace {

using Type = NumberType;

bool contains(const Modifiers& modifiers, const char* name) {
    return std::find(modifiers.begin(), modifiers.end(), name) != modifiers.end();
}

Modifiers without(const Modifiers& modifiers, std::initializer_list<const char*> names) {
    Modifiers rest;
    for (const std::string& modifier : modifiers)
        if (std::none_of(names.begin(), names.end(), [&](const char* name) { return modifier == name; }))
            rest.push_back(modifier);
    return rest;
}

bool one_of(Type type, std::initializer_list<Type> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
}

// Return whether products of type `a` can be summed in type `d`.
bool sums_in(Type a, Type d) {
    switch (a) {
        case Type::kF16:
        case Type::kE4m3:
        case Type::kE5m2: return one_of(d, {Type::kF16, Type::kF32});
        case Type::kBf16:
        case Type::kTf32: return d == Type::kF32;
        case Type::kF64: return d == Type::kF64;
        case Type::kS8:
        case Type::kU8:
        case Type::kS4:
        case Type::kU4:
        case Type::kB1: return d == Type::kS32;
        default: return false;
    }
}

using Shapes = std::initializer_list<const char*>;

bool in(const std::string& shape, Shapes shapes) {
    return std::any_of(shapes.begin(), shapes.end(), [&](const char* name) { return shape == name; });
}

// PTX ISA, section "mma", table of shapes.
bool has_mma_shape(Type a, const std::string& shape) {
    switch (a) {
        case Type::kF16:
        case Type::kBf16: return in(shape, {"m16n8k8", "m16n8k16"});
        case Type::kTf32: return in(shape, {"m16n8k4", "m16n8k8"});
        case Type::kE4m3:
        case Type::kE5m2: return in(shape, {"m16n8k16", "m16n8k32"});
        case Type::kS8:
        case Type::kU8: return in(shape, {"m8n8k16", "m16n8k16", "m16n8k32"});
        case Type::kS4:
        case Type::kU4: return in(shape, {"m8n8k32", "m16n8k32", "m16n8k64"});
        case Type::kB1: return in(shape, {"m8n8k128", "m16n8k128", "m16n8k256"});
        case Type::kF64: return in(shape, {"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"});
        default: return false;
    }
}

WmmaShape extents(const std::string& shape) {
    // Parse a shape of the tables above: m<number>n<number>k<number>.
    const size_t n = shape.find('n'), k = shape.find('k');
    return {parse_int(shape.substr(1, n - 1)), parse_int(shape.substr(n + 1, k - n - 1)),
            parse_int(shape.substr(k + 1))};
}

}  // namespace

bool may_multiply(Type a, Type b) {
    const auto both = [&](Type first, Type second) { return one_of(a, {first, second}) && one_of(b, {first, second}); };
    return a == b || both(Type::kE4m3, Type::kE5m2) || both(Type::kS8, Type::kU8) || both(Type::kS4, Type::kU4);
}

bool is_product_type(const MatrixMultiply& types) { return sums_in(types.a, types.c) && sums_in(types.a, types.d); }

const ElementType& element_type(Type type) {
    static const ElementType f16{16, "f16"}, bf16{16, "bf16"}, tf32{32, "tf32"}, f8{8, "f16", 4}, i8{8, "i8"},
        i4{4, "i8", 4}, b1{1, "i8", 1}, f64{64, "f64"}, f32{32, "f32"}, s32{32, "i32"};
    switch (type) {
        case Type::kF16: return f16;
        case Type::kBf16: return bf16;
        case Type::kTf32: return tf32;
        case Type::kE4m3:
        case Type::kE5m2:
        case Type::kE2m3:
        case Type::kE3m2:
        case Type::kE2m1: return f8;
        case Type::kS8:
        case Type::kU8: return i8;
        case Type::kS4:
        case Type::kU4: return i4;
        case Type::kB1: return b1;
        case Type::kF64: return f64;
        case Type::kF32: return f32;
        default: return s32;
    }
}

void count_operations(Memory& memory, const char* unit, Type type, uint64_t operations) {
    const ElementType& element = element_type(type);
    const std::string metric = std::string(unit) + "." + element.counted;
    memory.count(metric.c_str(), operations * uint64_t(element.eighths) / 8);
}

MatrixMultiply mma_form(const Modifiers& modifiers) {
    const Modifiers marks = without(modifiers, {"xor", "and", "popc"});
    if (marks.size() < 9) throw UnsupportedForm("");
    const bool saturates = marks[5] == "satfinite";
    if (marks.size() != size_t(9 + saturates) || marks[0] != "sync" || marks[1] != "aligned" || marks[3] != "row" ||
        marks[4] != "col")
        throw UnsupportedForm("");
    const size_t first = 5 + saturates;
    const Type d = number_type(marks[first]), a = number_type(marks[first + 1]), b = number_type(marks[first + 2]),
               c = number_type(marks[first + 3]);
    if (!sums_in(a, c) || !sums_in(a, d)) throw UnsupportedForm("");
    if (!has_mma_shape(a, marks[2]) || !may_multiply(a, b))
        throw UnsupportedForm("shape " + marks[2] + " of ." + marks[first + 1] + " and ." + marks[first + 2]);
    const bool counts_bits = contains(modifiers, "popc");
    if ((a == Type::kB1) != counts_bits || (counts_bits && contains(modifiers, "xor") == contains(modifiers, "and")))
        throw UnsupportedForm("");
    const WmmaShape shape = extents(marks[2]);
    return {shape.m, shape.k, a, b, c, d, saturates, contains(modifiers, "xor")};
}

void mma_sync(const MatrixMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
              const Register* d) {
    multiply_fragments({form.a, form.b, form.c, form.d, form.m, form.k, form.saturates, form.counts_xor, a, b, c, d});
}

void mma_sync_f64(const MatrixMultiply& form, const uint64_t* const* a, const uint64_t* const* b,
                  const uint64_t* const* c, uint64_t* const* d) {
    alignas(64) double numbers_a[256], numbers_b[128], sums[128];
    for (int r = 0; r < form.registers_a(); ++r) std::memcpy(numbers_a + 32 * r, a[r], 256);
    for (int r = 0; r < form.registers_b(); ++r)
        for (int lane = 0; lane < 32; ++lane)
            numbers_b[(4 * r + lane % 4) * 8 + lane / 4] = bit_cast<double>(b[r][lane]);
    multiply_tile_f64({numbers_a, form.m, form.k, 4}, numbers_b, sums);
    for (int r = 0; r < form.registers_c(); ++r)
        for (int lane = 0; lane < 32; ++lane) {
            const int i = 64 * (r / 2) + 2 * lane + r % 2;
            sums[i] += bit_cast<double>(c[r][lane]);
        }
    for (int r = 0; r < form.registers_d(); ++r)
        for (int lane = 0; lane < 32; ++lane) d[r][lane] = bit_cast<uint64_t>(sums[64 * (r / 2) + 2 * lane + r % 2]);
}

// --- Block scaling ---

ScaledMultiply scaled_mma_form(const Modifiers& modifiers) {
    // sync.aligned.m16n8kK.row.col.kind::K[.block_scale[.scale_vec::V]].d.a.b.c[.scale]
    if (modifiers.size() < 11 || modifiers[0] != "sync" || modifiers[1] != "aligned" || modifiers[3] != "row" ||
        modifiers[4] != "col" || modifiers[5] != "kind")
        throw UnsupportedForm("");
    const std::string& kind = modifiers[6];
    const bool plain = kind == "f8f6f4", packed = kind == "mxf4" || kind == "mxf4nvf4";
    if (!(plain || packed || kind == "mxf8f6f4") || modifiers[2] != (packed ? "m16n8k64" : "m16n8k32"))
        throw UnsupportedForm("");
    Modifiers marks(modifiers.begin() + 7, modifiers.end());
    ScaledMultiply form{};
    form.k = packed ? 64 : 32;
    form.packed = packed;
    if (!plain) {
        if (marks[0] != "block_scale") throw UnsupportedForm("no block scaling");
        const bool states = marks[1] == "scale_vec";
        const std::string stated = states ? marks[2] : kind == "mxf8f6f4" ? "1X" : kind == "mxf4" ? "2X" : "";
        form.factors = stated == "1X" ? 1 : stated == "2X" ? 2 : stated == "4X" ? 4 : 0;
        if (!form.factors || (marks.back() != "ue8m0" && marks.back() != "ue4m3"))
            throw UnsupportedForm("scale factors");
        form.scale = number_type(marks.back());
        marks = Modifiers(marks.begin() + (states ? 3 : 1), marks.end() - 1);
    }
    if (marks.size() != 4) throw UnsupportedForm("");
    form.d = number_type(marks[0]), form.a = number_type(marks[1]), form.b = number_type(marks[2]);
    form.c = number_type(marks[3]);
    const auto is_small = [](Type type) {
        return one_of(type, {Type::kE4m3, Type::kE5m2, Type::kE2m3, Type::kE3m2, Type::kE2m1});
    };
    const auto is_sum = [](Type type) { return one_of(type, {Type::kF16, Type::kF32}); };
    if (!is_small(form.a) || !is_small(form.b) || !is_sum(form.c) || !is_sum(form.d) ||
        (!plain && form.d != Type::kF32))
        throw UnsupportedForm("");
    if (packed && (form.a != Type::kE2m1 || form.b != Type::kE2m1)) throw UnsupportedForm("");
    return form;
}

namespace {

// Multiply a row of A, or a column of B, by the scale factors along K.
void scale_numbers(const ScaledMultiply& form, const ScaleOperand& operand, int rows_of_thread, int width,
                   int registers, double* numbers, bool is_b) {
    // The whole warp uses the same thread of four and the same byte.
    const int extent = 8 * rows_of_thread, per_factor = form.k / form.factors, high = extent / 8;
    (void)registers;
    for (int row = 0; row < extent; ++row) {
        const int lane = 4 * (row % 8) + int(operand.thread) * rows_of_thread + row / 8;
        for (int k = 0; k < form.k; ++k) {
            const uint32_t code =
                operand.factors[lane & 31] >> 8 * ((operand.byte + uint32_t(k / per_factor)) & 3) & 0xFF;
            const int i = is_b ? k * 8 + row : ((k / width * high + row / 8) * 8 + row % 8) * width + k % width;
            numbers[i] *= to_double(form.scale, code);
        }
    }
}

}  // namespace

void scaled_mma(const ScaledMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
                const Register* d, const ScaleOperand& scale_a, const ScaleOperand& scale_b) {
    alignas(64) double numbers_a[kMostTileNumbers], numbers_b[kMostTileNumbers], sums[kMostTileSums];
    const SmallFloats codes_a{form.a, form.packed}, codes_b{form.b, form.packed};
    decode_small_a(codes_a, 4, a, numbers_a);
    decode_small_b(codes_b, 2, b, numbers_b);
    const int width = form.packed ? 32 : 16;
    if (form.factors) {
        scale_numbers(form, scale_a, 2, width, 4, numbers_a, false);
        scale_numbers(form, scale_b, 1, width, 2, numbers_b, true);
    }
    multiply_tile({numbers_a, 16, form.k, width}, numbers_b, sums);
    add_c(form.c, 16, c, sums);
    write_d(form.d, 16, false, sums, d);
}

void count_scaled_mma(Memory& memory, const ScaledMultiply& form) {
    memory.count("mma.f16", uint64_t(2) * 16 * 8 * form.k / (form.packed ? 4 : 2));
}

// --- wmma ---

namespace {

constexpr Shapes kWideShapes = {"m16n16k16", "m32n8k16", "m8n32k16"};

// PTX ISA, section "Warp-level Matrix Shape".
bool has_wmma_shape(Type type, bool is_sum, const std::string& shape) {
    if (is_sum) {
        switch (type) {
            case Type::kF16: return in(shape, kWideShapes);
            case Type::kF32: return in(shape, kWideShapes) || shape == "m16n16k8";
            case Type::kS32: return in(shape, kWideShapes) || in(shape, {"m8n8k32", "m8n8k128"});
            case Type::kF64: return shape == "m8n8k4";
            default: return false;
        }
    }
    switch (type) {
        case Type::kF16:
        case Type::kBf16:
        case Type::kS8:
        case Type::kU8: return in(shape, kWideShapes);
        case Type::kTf32: return shape == "m16n16k8";
        case Type::kF64: return shape == "m8n8k4";
        case Type::kS4:
        case Type::kU4: return shape == "m8n8k32";
        case Type::kB1: return shape == "m8n8k128";
        default: return false;
    }
}

WmmaShape wmma_extents(const std::string& shape, Type type, const std::string& type_name, char operand) {
    if (!has_wmma_shape(type, operand == 'c' || operand == 'd', shape))
        throw UnsupportedForm("shape " + shape + " of ." + type_name);
    return extents(shape);
}

// Return the number of registers of a fragment with different elements.
int distinct_registers(const WmmaShape& shape, char operand, Type type) {
    const int elements = operand == 'a' ? shape.m * shape.k : operand == 'b' ? shape.k * shape.n : shape.m * shape.n;
    return elements / (32 * element_type(type).per_register());
}

int wmma_registers(const WmmaShape& shape, char operand, Type type) {
    const bool repeats = type == Type::kF16 && (operand == 'a' || operand == 'b');
    return repeats ? 8 : distinct_registers(shape, operand, type);
}

std::vector<WmmaPiece> wmma_pieces(const WmmaMove& form) {
    const int p = element_type(form.type).per_register();
    const bool is_sum = form.operand == 'c' || form.operand == 'd', is_b = form.operand == 'b';
    const int step = is_sum ? 2 : p;
    const bool together = is_sum ? form.by_row : form.by_row == (form.operand == 'a');
    const int outer = (is_sum ? form.shape.m : is_b ? form.shape.n : form.shape.m) / 8;
    const int inner = is_sum ? form.shape.n / 8 : form.shape.k / (4 * p);
    std::vector<WmmaPiece> pieces;
    int number = 0;
    const auto add = [&](int i, int j) {
        const int count = together ? 1 : step;
        for (int e = 0; e < count; ++e) {
            WmmaPiece piece{};
            piece.first_element = number * step + e;
            piece.elements = together ? step : 1;
            for (int lane = 0; lane < int(kWarp); ++lane) {
                const int g = lane / 4, t = lane % 4;
                const int across = 8 * i + g, along = is_sum ? 8 * j + 2 * t + e : 4 * p * j + p * t + e;
                piece.row[lane] = is_b ? along : across;
                piece.column[lane] = is_b ? across : along;
            }
            pieces.push_back(piece);
        }
        ++number;
    };
    if (is_b)
        for (int i = 0; i < outer; ++i)
            for (int j = 0; j < inner; ++j) add(i, j);
    else
        for (int j = 0; j < inner; ++j)
            for (int i = 0; i < outer; ++i) add(i, j);
    return pieces;
}

}  // namespace

uint32_t WmmaMove::default_stride() const {
    const int height = operand == 'b' ? shape.k : shape.m, width = operand == 'a' ? shape.k : shape.n;
    return uint32_t(by_row ? width : height);
}

uint32_t WmmaMove::unit_bytes(const WmmaPiece& piece) const {
    const int p = element_type(type).per_register();
    return piece.elements == p && p > 1 ? 4 : uint32_t(bits() / 8);
}

WmmaMove wmma_move_form(const Modifiers& modifiers) {
    WmmaMove form{};
    form.store = modifiers[0] == "store";
    if (modifiers.size() < 5 || modifiers[1].size() != 1 || !contains(modifiers, "sync")) throw UnsupportedForm("");
    form.operand = modifiers[1][0];
    const bool by_row = contains(modifiers, "row"), by_column = contains(modifiers, "col");
    const auto shape = std::find_if(modifiers.begin() + 2, modifiers.end() - 1, [](const std::string& modifier) {
        return modifier.size() > 1 && modifier[0] == 'm' && modifier[1] >= '0' && modifier[1] <= '9';
    });
    const std::string operands = form.store ? "d" : "abc";
    if (operands.find(form.operand) == std::string::npos || by_row == by_column) throw UnsupportedForm("");
    form.by_row = by_row;
    form.type = number_type(modifiers.back());
    form.shape = wmma_extents(shape == modifiers.end() - 1 ? "" : *shape, form.type, modifiers.back(), form.operand);
    if (one_of(form.type, {Type::kS4, Type::kU4, Type::kB1}) && by_row != (form.operand == 'a'))
        throw UnsupportedForm("a matrix " + modifiers[1] + " of ." + modifiers.back() + " by " +
                              (by_row ? "row" : "col"));
    form.registers = wmma_registers(form.shape, form.operand, form.type);
    form.distinct = distinct_registers(form.shape, form.operand, form.type);
    form.pieces = wmma_pieces(form);
    return form;
}

WmmaMultiply wmma_multiply_form(const Modifiers& modifiers) {
    const bool saturates = contains(modifiers, "satfinite");
    const bool counts_bits = contains(modifiers, "popc") || contains(modifiers, "xor") || contains(modifiers, "and");
    const Modifiers marks =
        without(modifiers, {"mma", "sync", "aligned", "rn", "rz", "rm", "rp", "xor", "and", "popc", "satfinite"});
    if (marks.size() < 5 || !contains(modifiers, "sync")) throw UnsupportedForm("");
    Modifiers types(marks.begin() + 3, marks.end());
    if (types.size() == 2) types = {types[0], "f16", "f16", types[1]};  // f16 forms do not name A and B
    if (types.size() != 4 || (types[1] == "b1") != counts_bits) throw UnsupportedForm("");
    const Type d = number_type(types[0]), a = number_type(types[1]), b = number_type(types[2]),
               c = number_type(types[3]);
    const WmmaShape shape = wmma_extents(marks[2], a, types[1], 'a');
    wmma_extents(marks[2], c, types[3], 'c');
    wmma_extents(marks[2], d, types[0], 'd');
    if (!may_multiply(a, b) || !sums_in(a, c) || !sums_in(a, d))
        throw UnsupportedForm("shape " + marks[2] + " of ." + types[1] + " and ." + types[2]);
    return {{shape.m, shape.k, a, b, c, d, saturates, contains(modifiers, "xor")},
            shape.n,
            wmma_registers(shape, 'a', a),
            wmma_registers(shape, 'b', b),
            wmma_registers(shape, 'c', c),
            wmma_registers(shape, 'd', d)};
}

void wmma_mma(const WmmaMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
              const Register* d) {
    const MatrixMultiply& tile = form.tile;
    if (form.tiles() == 1) return mma_sync(tile, a, b, c, d);
    // D may share registers with C, B or A, so write the results after all tiles.
    uint32_t results[64][kWarp];
    Register targets[64];
    const int count = tile.registers_d();
    for (int i = 0; i < form.tiles() * count; ++i) targets[i] = results[i];
    for (int i = 0; i < form.tiles(); ++i)
        mma_sync(tile, a, b + i * tile.registers_b(), c + i * tile.registers_c(), targets + i * count);
    for (int i = 0; i < form.tiles() * count; ++i) std::memcpy(d[i], results[i], sizeof results[i]);
}

}  // namespace kernrec

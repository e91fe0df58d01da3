// Matrices in shared memory given by descriptors, and wgmma: see tensor_core.h.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tensor_core.h"
#include "text.h"
#include "tile_multiply.h"

namespace kernrec {
namespace {

uint32_t field(uint64_t bits, int low, int count) { return uint32_t(bits >> low & ((uint64_t(1) << count) - 1)); }

struct ReservedField {
    int low, count;
};

MatrixDescriptor descriptor_of(uint64_t bits, std::initializer_list<ReservedField> reserved, uint32_t row_bytes,
                               uint32_t piece_bytes) {
    for (const auto [low, count] : reserved)
        if (field(bits, low, count))
            throw std::invalid_argument("bits " + std::to_string(low) + " to " + std::to_string(low + count - 1) +
                                        " of matrix descriptor " + hex(bits, 16) + " are reserved and must be 0");
    const uint32_t base_offset = field(bits, 49, 3);
    if (base_offset && row_bytes == 16)
        throw std::invalid_argument("matrix descriptor " + hex(bits, 16) + " has a base offset but no swizzling");
    return {field(bits, 0, 14) << 4,
            field(bits, 16, 14) << 4,
            field(bits, 32, 14) << 4,
            base_offset,
            row_bytes,
            piece_bytes};
}

}  // namespace

MatrixDescriptor wgmma_descriptor(uint64_t bits) {
    static constexpr uint32_t kRowBytes[] = {16, 128, 64, 32};
    return descriptor_of(bits, {{14, 2}, {30, 2}, {46, 3}, {52, 10}}, kRowBytes[field(bits, 62, 2)], 16);
}

MatrixDescriptor tcgen05_descriptor(uint64_t bits) {
    const uint32_t mode = field(bits, 61, 3);
    // Check reserved bits first, because the message names the lowest of them.
    const uint32_t row_bytes = mode == 1 || mode == 2 ? 128 : mode == 4 ? 64 : mode == 6 ? 32 : 16;
    const uint64_t without_base = bits & ~(uint64_t(7) << 49);
    descriptor_of(without_base, {{14, 2}, {30, 2}, {53, 8}}, row_bytes, 16);
    const std::string name = "matrix descriptor " + hex(bits, 16);
    if (field(bits, 46, 3) != 1)
        throw std::invalid_argument("bits 46 to 48 of " + name + " are " + std::to_string(field(bits, 46, 3)) +
                                    ", not 1");
    if (field(bits, 52, 1))
        throw std::invalid_argument("the leading offset of " + name + " is an address: not supported");
    if (mode == 3 || mode == 5 || mode == 7)
        throw std::invalid_argument(name + " has swizzle mode " + std::to_string(mode) + ", which does not exist");
    return descriptor_of(bits, {}, row_bytes, mode == 1 ? 32 : 16);
}

uint32_t tile_address(const MatrixDescriptor& descriptor, bool mn_major, uint32_t across, uint32_t along) {
    const uint32_t row = descriptor.row_bytes, piece = descriptor.piece_bytes, rows = piece == 32 ? 4 : 8;
    uint32_t behind, next_rows = descriptor.stride_bytes;
    if (row == 16) {
        const uint32_t next_piece = mn_major ? descriptor.stride_bytes : descriptor.leading_bytes;
        if (mn_major) next_rows = descriptor.leading_bytes;
        behind = along / 16 * next_piece + along % 16;
    } else {
        behind = mn_major ? along / row * descriptor.leading_bytes + along % row : along;
    }
    const uint32_t address = descriptor.start + behind + across / rows * next_rows + across % rows * row;
    if (row == 16) return address;
    const uint32_t turn = ((address >> 7) - descriptor.base_offset) & (row / piece - 1);
    return address ^ turn * piece;
}

std::vector<uint8_t> read_tile(Memory& memory, uint32_t block, bool is_tcgen05, uint64_t bits, const TileShape& shape,
                               std::vector<uint32_t>* addresses) {
    MatrixDescriptor descriptor{};
    try {
        descriptor = is_tcgen05 ? tcgen05_descriptor(bits) : wgmma_descriptor(bits);
    } catch (const std::invalid_argument& error) {
        memory.fail(error.what());
    }
    const uint32_t size = shape.element_bytes;
    const uint32_t along_bytes = (shape.mn_major ? shape.extent : shape.depth) * size;
    const uint32_t across_rows = shape.mn_major ? shape.depth : shape.extent;
    const auto each_piece = [&](auto&& visit) {
        for (uint32_t across = 0; across < across_rows; ++across)
            for (uint32_t along = 0; along < along_bytes; along += 16) {
                const uint32_t bytes = std::min(16u, along_bytes - along);
                visit(across, along, bytes, tile_address(descriptor, shape.mn_major, across, along));
            }
    };
    uint32_t end = 0;
    each_piece([&](uint32_t, uint32_t, uint32_t bytes, uint32_t address) { end = std::max(end, address + bytes); });
    if (end > memory.shared_bytes())
        memory.fail("matrix descriptor " + hex(bits, 16) + " describes " + std::to_string(shape.extent) +
                    " rows up to byte " + std::to_string(end - 1) + " of shared memory, of which the block has " +
                    std::to_string(memory.shared_bytes()) + " bytes");
    std::vector<uint8_t> tile(size_t(shape.extent) * shape.depth * size);
    if (addresses) addresses->resize(size_t(shape.extent) * shape.depth);
    const uint8_t* shared = memory.shared(block);
    each_piece([&](uint32_t across, uint32_t along, uint32_t bytes, uint32_t address) {
        if (!shape.mn_major) std::memcpy(&tile[size_t(across) * along_bytes + along], shared + address, bytes);
        if (!shape.mn_major && !addresses) return;
        for (uint32_t i = 0; i < bytes / size; ++i) {
            const uint32_t position = along / size + i;
            const size_t element =
                shape.mn_major ? size_t(position) * shape.depth + across : size_t(across) * shape.depth + position;
            if (shape.mn_major) std::memcpy(&tile[element * size], shared + address + i * size, size);
            if (addresses) (*addresses)[element] = address + i * size;
        }
    });
    return tile;
}

// --- wgmma ---

WgmmaMultiply wgmma_form(const Modifiers& modifiers) {
    Modifiers marks;
    bool saturates = false, counts_bits = false, sparse = false;
    for (size_t i = 1; i < modifiers.size(); ++i) {
        const std::string& mark = modifiers[i];
        sparse |= mark == "sp";
        saturates |= mark == "satfinite";
        counts_bits |= mark == "popc";
        if (mark != "satfinite" && mark != "and" && mark != "popc") marks.push_back(mark);
    }
    if (sparse) throw UnsupportedForm("a sparse matrix A");
    if (marks.size() != 6 || marks[0] != "sync" || marks[1] != "aligned") throw UnsupportedForm("");
    const std::string& shape = marks[2];
    const size_t k_at = shape.find('k');
    int n = 0, k = 0;
    if (shape.compare(0, 4, "m64n") == 0 && k_at != std::string::npos) {
        n = parse_int(shape.substr(4, k_at - 4));
        k = parse_int(shape.substr(k_at + 1));
    }
    const NumberType d = number_type(marks[3]), a = number_type(marks[4]), b = number_type(marks[5]);
    const MatrixMultiply types{16, k, a, b, d, d};
    if (n <= 0 || k <= 0 || !is_product_type(types) || a == NumberType::kF64 || a == NumberType::kS4 ||
        a == NumberType::kU4)
        throw UnsupportedForm("");
    if (!may_multiply(a, b)) throw UnsupportedForm("." + marks[4] + " with ." + marks[5]);
    const bool of_integers = d == NumberType::kS32;
    const bool fits = of_integers ? n == 8 || n == 24 || (n % 16 == 0 && n <= 256) : n % 8 == 0 && n <= 256;
    if (!fits || k * number_bits(a) != 8 * int(kTileRowBytes))
        throw UnsupportedForm("shape " + shape + " of ." + marks[4]);
    if ((a == NumberType::kB1) != counts_bits) throw UnsupportedForm("");
    return {n, k, d, a, b, saturates};
}

WgmmaTiles read_wgmma_tiles(Memory& memory, const WgmmaMultiply& form, const WgmmaOperands& operands, uint32_t block) {
    WgmmaTiles tiles;
    const auto tile_of = [&](NumberType type, uint32_t extent, bool mn_major, uint64_t descriptor) {
        const uint32_t bytes = std::max(1, number_bits(type) / 8);
        std::vector<uint32_t> addresses;
        auto tile =
            read_tile(memory, block, false, descriptor, {extent, kTileRowBytes / bytes, bytes, mn_major}, &addresses);
        tiles.addresses.insert(tiles.addresses.end(), addresses.begin(), addresses.end());
        return tile;
    };
    const std::vector<uint8_t> b = tile_of(form.b, uint32_t(form.n), operands.b_mn_major, operands.b_descriptor);
    if (!operands.a_registers) tiles.a = tile_of(form.a, 64, operands.a_mn_major, operands.a_descriptor);
    tiles.b.resize(size_t(form.n) * size_t(form.k));
    double row[256];
    for (int column = 0; column < form.n; ++column) {
        decode_bytes(form.b, &b[size_t(column) * kTileRowBytes], form.k, row);
        double* numbers = &tiles.b[size_t(column / 8) * 8 * size_t(form.k) + size_t(column % 8)];
        for (int k = 0; k < form.k; ++k) numbers[8 * k] = row[k];
    }
    return tiles;
}

void wgmma_mma(Memory& memory, const WgmmaMultiply& form, const WgmmaOperands& operands, const WgmmaTiles& tiles,
               int quarter, const Register* d) {
    alignas(64) double a[16 * 256], sums[128];
    int width = form.k;
    if (operands.a_registers) {
        decode_a(form.a, 4, operands.a_registers, a);
        width = 4 * 32 / number_bits(form.a);
    } else {
        decode_bytes(form.a, &tiles.a[size_t(16) * quarter * kTileRowBytes], 16 * form.k, a);
    }
    const int per_tile = form.d == NumberType::kF16 ? 2 : 4;
    for (int tile = 0; tile < form.n / 8; ++tile) {
        multiply_tile({a, 16, form.k, width}, &tiles.b[size_t(tile) * 8 * size_t(form.k)], sums);
        if (operands.sign < 0)
            for (double& sum : sums) sum = -sum;
        const Register* part = d + tile * per_tile;
        if (operands.adds_d) add_c(form.d, 16, part, sums);
        write_d(form.d, 16, form.saturates, sums, part);
    }
    const uint64_t operations = uint64_t(2) * 16 * form.n * form.k;
    count_operations(memory, "mma", form.a, operations);
    count_operations(memory, "wgmma", form.a, operations);
    if (quarter == 0)
        memory.count("wgmma.shared_bytes", uint64_t(form.n + (operands.a_registers ? 0 : 64)) * kTileRowBytes);
}

}  // namespace kernrec

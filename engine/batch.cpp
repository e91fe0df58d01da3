#include "batch.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "handovers.h"
#include "lanes.h"
#include "pending.h"

namespace kernrec {

namespace {

constexpr size_t kAlignment = 64;

uint32_t padded(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

std::string position_text(int64_t number, const uint32_t (&extents)[3]) {
    const int64_t x = extents[0], y = extents[1];
    return "(" + std::to_string(number % x) + ", " + std::to_string(number / x % y) + ", " +
           std::to_string(number / (x * y)) + ")";
}

Batch::Batch(const Program& program, const Launch& launch)
    : counts(launch.buffers.size(), program.blocks.size()), program(program), launch(launch) {
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    warps_per_block = (threads + kWarp - 1) / kWarp;
    warp_count = warps_per_block * launch.blocks_per_batch;
    lanes = warp_count * kWarp;
    size_t size = 0;
    auto place = [&](uint32_t width, size_t bytes_per_row) {
        const size_t base = size;
        const auto rows = program.rows.find(width);
        size += (rows == program.rows.end() ? 0 : rows->second) * bytes_per_row;
        size = (size + kAlignment - 1) / kAlignment * kAlignment;
        return base;
    };
    base64_ = place(64, size_t(lanes) * 8);
    base32_ = place(32, size_t(lanes) * 4);
    base16_ = place(16, size_t(lanes) * 2);
    base8_ = place(8, size_t(lanes));
    base1_ = place(1, size_t(warp_count) * 4);
    arena_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size + kAlignment));
    if (!arena_) throw std::bad_alloc();
    std::memset(arena_, 0, size);
    shared_stride_ = padded(launch.shared_bytes);
    local_stride_ = padded(launch.local_bytes);
    argument_stride_ = padded(launch.argument_bytes);
    shared_.assign(size_t(shared_stride_) * launch.blocks_per_batch + 16, kPoisonByte);
    local_.assign(size_t(local_stride_) * lanes + 16, kPoisonByte);
    argument_.assign(size_t(argument_stride_) * lanes + 16, kPoisonByte);
    running_warps_.resize(warp_count);
    running_masks_.resize(warp_count);
    live_.resize(warp_count);
    positions_.resize(lanes);
    parked_.resize(lanes);
    masks_.resize(warp_count);
    waiting_at_.resize(lanes);
    resume_.resize(lanes);
    committed.resize(lanes);
    pending.resize(warp_count);
    tried_.resize(lanes);
    resolved_.reserve(warp_count);
    for (const BasicBlock& block : program.blocks) has_spins_ |= block.spins;
    phase_waits_.resize(lanes);
    cluster_arrivals_.resize(lanes);
    cluster_waits_.resize(lanes);
    cluster_waiting_.resize(lanes);
    if (launch.check_races) {
        races_ = std::make_unique<RaceDetector>(launch.shared_bytes, launch.blocks_per_batch, warps_per_block,
                                                cluster_blocks());
        if (program.hands_over) handovers_ = std::make_unique<Handovers>(*this, races_->clocks);
    }
    work_ = std::make_unique<Pending>(*this);
    if (launch.checks) checks_ = std::make_unique<Checks>(*this);
    fill_constants();
}

Batch::~Batch() { std::free(arena_); }

size_t Batch::offset(const Row& row) const {
    switch (row.width) {
        case 64: return base64_ + size_t(row.index) * lanes * 8;
        case 32: return base32_ + size_t(row.index) * lanes * 4;
        case 16: return base16_ + size_t(row.index) * lanes * 2;
        case 8: return base8_ + size_t(row.index) * lanes;
        default: return base1_ + size_t(row.index) * warp_count * 4;
    }
}

void Batch::fill_constants() {
    for (const auto& [row, bits] : program.constants) {
        if (row.width == 1) std::fill_n(flags(row), warp_count, bits ? ~0u : 0u);
        else
            for_width(row.width, [&, row = row, bits = bits](auto t) {
                std::fill_n(this->row<decltype(t)>(row), lanes, decltype(t)(bits));
            });
    }
}

int64_t Batch::special(const std::string& name, uint32_t lane) const {
    const uint32_t thread = lane % (warps_per_block * kWarp);
    const int64_t block = block_numbers_[lane / (warps_per_block * kWarp)];
    uint32_t clusters[3];
    for (int axis = 0; axis < 3; axis++) clusters[axis] = launch.grid[axis] / launch.cluster[axis];
    int64_t cluster = 0, rank = 0, scale = 1, width = 1, rest = block;
    for (int axis = 0; axis < 3; axis++) {
        const int64_t position = rest % launch.grid[axis];
        rest /= launch.grid[axis];
        cluster += position / launch.cluster[axis] * scale;
        rank += position % launch.cluster[axis] * width;
        scale *= clusters[axis];
        width *= launch.cluster[axis];
    }
    const size_t dot = name.find('.');
    if (dot != std::string::npos) {
        const std::string base = name.substr(0, dot);
        const uint32_t axis = uint32_t(name[dot + 1] - 'x');
        auto along = [&](int64_t linear, const uint32_t* extents) {
            for (uint32_t i = 0; i < axis; i++) linear /= extents[i];
            return axis == 2 ? linear : linear % extents[axis];
        };
        if (base == "%tid") return along(thread, launch.block);
        if (base == "%ctaid") return along(block, launch.grid);
        if (base == "%ntid") return launch.block[axis];
        if (base == "%nctaid") return launch.grid[axis];
        if (base == "%nclusterid") return clusters[axis];
        if (base == "%cluster_nctaid") return launch.cluster[axis];
        return base == "%clusterid" ? along(cluster, clusters) : along(rank, launch.cluster);
    }
    const uint32_t bit = 1u << thread % kWarp;
    if (name == "%laneid") return thread % kWarp;
    if (name == "%warpid") return thread / kWarp;
    if (name == "%nwarpid") return warps_per_block;
    if (name == "%lanemask_eq") return bit;
    if (name == "%lanemask_lt") return bit - 1;
    if (name == "%lanemask_le") return (bit - 1) | bit;
    if (name == "%lanemask_ge") return uint32_t(~(bit - 1));
    if (name == "%lanemask_gt") return uint32_t(~((bit - 1) | bit));
    if (name == "%cluster_ctarank") return rank;
    return name == "%cluster_nctarank" ? cluster_blocks() : cluster_blocks() > 1;
}

void Batch::fill_specials() {
    const uint32_t block_lanes = warps_per_block * kWarp;
    auto put = [&](const Row& to, uint32_t first, uint32_t count, int64_t value) {
        if (to.width == 64) std::fill_n(row<uint64_t>(to) + first, count, uint64_t(value));
        else if (to.width == 32) std::fill_n(row<uint32_t>(to) + first, count, uint32_t(value));
        else if (first % kWarp == 0)
            std::fill_n(flags(to) + first / kWarp, (count + kWarp - 1) / kWarp, value ? ~0u : 0u);
    };
    for (const Special& special_row : program.specials) {
        const std::string& name = launch.special_names[special_row.id];
        const int64_t fixed = launch.special_values[special_row.id];
        const bool by_block = fixed < 0 && (name.rfind("%ctaid", 0) == 0 || name.rfind("%clusterid", 0) == 0 ||
                                            name.rfind("%cluster_cta", 0) == 0);
        if (has_specials_ && !by_block) continue;
        if (fixed >= 0) put(special_row.row, 0, lanes, fixed);
        for (uint32_t first = 0; first < lanes && by_block; first += block_lanes)
            put(special_row.row, first, block_lanes, special(name, first));
        for (uint32_t lane = 0; lane < lanes && fixed < 0 && !by_block; lane++)
            put(special_row.row, lane, 1, special(name, lane));
    }
    has_specials_ = true;
}

std::string Batch::block_text(uint32_t lane) const {
    return position_text(block_numbers_[lane / (warps_per_block * kWarp)], launch.grid);
}

std::string Batch::thread_text(uint32_t lane) const {
    return position_text(lane % (warps_per_block * kWarp), launch.block);
}

std::string Batch::coordinates(uint32_t lane) const {
    return "block " + block_text(lane) + " thread " + thread_text(lane);
}

void Batch::fail(const std::string& text) const { throw Fault(FaultKind::kEmulation, source, text); }

void Batch::fail(uint32_t warp, uint32_t lane, const std::string& text) const {
    throw Fault(FaultKind::kEmulation, source, coordinates(warp * kWarp + lane) + " " + text);
}

std::string Batch::place_name(SharedPlace place) const {
    const uint32_t blocks = cluster_blocks();
    return "byte " + std::to_string(place.byte) + " of shared memory" +
           (blocks > 1 ? " of the cluster's block " + std::to_string(place.block % blocks) : "");
}

uint64_t Batch::value(const Row& row, uint32_t lane) {
    if (row.width == 1) return flags(row)[lane / kWarp] >> lane % kWarp & 1;
    return for_width(row.width, [&](auto t) { return uint64_t(this->row<decltype(t)>(row)[lane]); });
}

void Batch::put_value(const Row& row, uint32_t lane, uint64_t value) {
    for_width(row.width, [&](auto t) { this->row<decltype(t)>(row)[lane] = decltype(t)(value); });
}

}  // namespace kernrec

#include "batch.h"

#include <algorithm>

#include "handovers.h"
#include "lanes.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

uint32_t padded(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

Position position_of(int64_t number, const uint32_t (&extents)[3]) {
    const int64_t x = extents[0], y = extents[1];
    return {number % x, number / x % y, number / (x * y)};
}

std::string position_text(int64_t number, const uint32_t (&extents)[3]) {
    const auto [x, y, z] = position_of(number, extents);
    return joined("(", x, ", ", y, ", ", z, ")");
}

Batch::Batch(const Program& program, const Launch& launch)
    : counts(launch.buffers.size(), program.blocks.size()), program(program), launch(launch) {
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    warps_per_block = (threads + kWarp - 1) / kWarp;
    warp_count = warps_per_block * launch.blocks_per_batch;
    lanes = warp_count * kWarp;
    arena_.resize((size_t(program.row_bytes) * lanes + sizeof(Line) - 1) / sizeof(Line));
    shared_stride_ = padded(launch.shared_bytes);
    local_stride_ = padded(launch.local_bytes);
    argument_stride_ = padded(launch.argument_bytes);
    argument_.assign(size_t(argument_stride_) * lanes + 16, kPoisonByte);
    resolved_.reserve(warp_count);
    for (const BasicBlock& block : program.blocks) has_spins_ |= block.spins;
    if (launch.check_races) {
        races_ = std::make_unique<RaceDetector>(launch.shared_bytes, launch.blocks_per_batch, warps_per_block,
                                                cluster_blocks());
        if (program.hands_over) handovers_ = std::make_unique<Handovers>(*this, races_->clocks);
    }
    work_ = std::make_unique<Pending>(*this);
    if (launch.checks) checks_ = std::make_unique<Checks>(*this);
    for (const auto& [row, bits] : program.constants) fill(row, 0, lanes, bits);
}

Batch::~Batch() = default;

void Batch::fill(const Row& row, uint32_t first, uint32_t count, uint64_t bits) {
    if (row.width > 1)
        for_width(row.width,
                  [&](auto t) { std::fill_n(this->row<decltype(t)>(row) + first, count, decltype(t)(bits)); });
    else if (first % kWarp == 0) std::fill_n(flags(row) + first / kWarp, (count + kWarp - 1) / kWarp, bits ? ~0u : 0u);
}

int64_t Batch::special(const std::string& name, uint32_t lane) const {
    const uint32_t thread = lane % (warps_per_block * kWarp);
    const Position block = position_of(block_number(lane_block(lane)), launch.grid);
    Position cluster, member;
    uint32_t clusters[3];
    for (int axis = 0; axis < 3; axis++) {
        clusters[axis] = launch.grid[axis] / launch.cluster[axis];
        cluster[axis] = block[axis] / launch.cluster[axis];
        member[axis] = block[axis] % launch.cluster[axis];
    }
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
        const std::string base = name.substr(0, dot);
        const uint32_t axis = uint32_t(name[dot + 1] - 'x');
        if (base == "%tid") return position_of(thread, launch.block)[axis];
        if (base == "%ctaid") return block[axis];
        if (base == "%ntid") return launch.block[axis];
        if (base == "%nctaid") return launch.grid[axis];
        if (base == "%nclusterid") return clusters[axis];
        if (base == "%cluster_nctaid") return launch.cluster[axis];
        return base == "%clusterid" ? cluster[axis] : member[axis];
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
    if (name == "%cluster_ctarank") return member[0] + launch.cluster[0] * (member[1] + launch.cluster[1] * member[2]);
    return name == "%cluster_nctarank" ? cluster_blocks() : cluster_blocks() > 1;
}

void Batch::fill_specials() {
    const uint32_t block_lanes = warps_per_block * kWarp;
    for (const auto& [row, id] : program.specials) {
        const std::string& name = launch.special_names[id];
        const bool by_block =
            name.rfind("%ctaid", 0) == 0 || name.rfind("%clusterid", 0) == 0 || name.rfind("%cluster_cta", 0) == 0;
        if (has_specials_ && !by_block) continue;
        const uint32_t step = by_block ? block_lanes : 1;  // lanes with the same value
        for (uint32_t first = 0; first < lanes; first += step) fill(row, first, step, uint64_t(special(name, first)));
    }
    has_specials_ = true;
}

void Batch::fail(const std::string& text) const { throw Fault(FaultKind::kEmulation, source, text); }

void Batch::fail_lane(uint32_t lane, const std::string& text) const { fail(coordinates(lane) + " " + text); }

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

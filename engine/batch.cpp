#include "batch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <tuple>

#include "cost.h"
#include "handovers.h"
#include "lanes.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr size_t kAlignment = 64;

uint32_t padded(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

const char* name_of(Space space) {
    constexpr const char* names[] = {"generic", "global", "shared", "local", "const", "param", "argument"};
    return names[size_t(space)];
}

std::string at_address(uint64_t bytes, Space space, uint64_t address) {
    return "accesses " + std::to_string(bytes) + " bytes at " + name_of(space) + " address " + hex(address) +
           ", which is ";
}

std::string misaligned(uint32_t bytes, Space space, uint64_t address) {
    return at_address(bytes, space, address) + "not a multiple of " + std::to_string(bytes);
}

// Describe an access outside of a region that starts at address `start`.
std::string outside(uint64_t bytes, uint64_t address, uint64_t start, const std::string& region, uint64_t size) {
    return "accesses " + std::to_string(bytes) + " bytes at offset " + std::to_string(int64_t(address - start)) +
           " of " + region + ", which has " + std::to_string(size) + " bytes (address " + hex(address) + ")";
}

}  // namespace

std::string position_text(int64_t number, const uint32_t (&extents)[3]) {
    const int64_t x = extents[0], y = extents[1];
    return "(" + std::to_string(number % x) + ", " + std::to_string(number / x % y) + ", " +
           std::to_string(number / (x * y)) + ")";
}

void Counts::merge(const Counts& other) {
    auto add = [](Counter& to, const Counter& from) {
        to.value += from.value;
        to.present |= from.present;
    };
    auto add_buffer = [&](BufferCounts& to, const BufferCounts& from) {
        for (int kind = 0; kind < 3; kind++) {
            add(to.sectors[kind], from.sectors[kind]);
            add(to.requests[kind], from.requests[kind]);
            add(to.bytes[kind], from.bytes[kind]);
            add(to.passes[kind], from.passes[kind]);
        }
        add(to.atomics, from.atomics);
        add(to.turns, from.turns);
    };
    buffers.resize(other.buffers.size());
    for (size_t i = 0; i < buffers.size(); i++) add_buffer(buffers[i], other.buffers[i]);
    add_buffer(local, other.local);
    for (int kind = 0; kind < 3; kind++) {
        add(wavefronts[kind], other.wavefronts[kind]);
        add(ideal[kind], other.ideal[kind]);
    }
    add(atomic_repeats, other.atomic_repeats);
    add(shared_atomics, other.shared_atomics);
    add(local_atomics, other.local_atomics);
    add(barriers, other.barriers);
    for (const auto& [name, value] : other.named) named[name] += value;
    warps.resize(other.warps.size());
    lanes.resize(other.lanes.size());
    for (size_t i = 0; i < warps.size(); i++) {
        warps[i] += other.warps[i];
        lanes[i] += other.lanes[i];
    }
    by_warp.resize(std::max(by_warp.size(), other.by_warp.size()));
    for (size_t i = 0; i < other.by_warp.size(); i++) by_warp[i] += other.by_warp[i];
}

Batch::Batch(const Program& program, const Launch& launch) : program(program), launch(launch) {
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
    counts.buffers.resize(launch.buffers.size());
    counts.warps.resize(program.blocks.size());
    counts.lanes.resize(program.blocks.size());
    for (const BasicBlock& block : program.blocks) has_spins_ |= block.spins;
    phase_waits_.resize(lanes);
    cluster_arrivals_.resize(lanes);
    cluster_waits_.resize(lanes);
    cluster_waiting_.resize(lanes);
    const bool by_phases = program.has_async_barriers || cluster_blocks() > 1 || program.hands_over;
    if (launch.check_races && by_phases) {
        auto phases = std::make_unique<PhaseRaces>(launch.shared_bytes, launch.blocks_per_batch, warps_per_block,
                                                   cluster_blocks());
        phase_races_ = phases.get();
        races_ = std::move(phases);
        if (program.hands_over) handovers_ = std::make_unique<Handovers>(*this, phase_races_->clocks);
    } else if (launch.check_races) {
        races_ = std::make_unique<BarrierRaces>(launch.shared_bytes, launch.blocks_per_batch, warps_per_block);
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

// Memory

KERNREC_INLINE bool Batch::resolve_inline(const Instruction& ins, uint32_t bytes, bool write, bool narrow,
                                          Resolved& at) {
    int64_t raw[kWarp];
    const uint32_t first_lane = at.warp * kWarp;
    if (narrow) {
        const int32_t* addresses = row<int32_t>(ins.a) + first_lane;
        for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] = int64_t(addresses[lane]) + ins.immediate;
    } else {
        const int64_t* addresses = row<int64_t>(ins.a) + first_lane;
        for (uint32_t lane = 0; lane < kWarp; lane++)
            raw[lane] = int64_t(uint64_t(addresses[lane]) + uint64_t(ins.immediate));
    }
    const int64_t one = raw[__builtin_ctz(at.mask)];
    if (at.mask != ~0u)
        for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] = kLanes.bit[lane] & at.mask ? raw[lane] : one;
    uint64_t apart = 0;
    for (uint32_t lane = 0; lane < kWarp; lane++) apart |= uint64_t(raw[lane] ^ one);
    uint64_t gaps = 0;
    for (uint32_t lane = 0; lane < kWarp; lane++) gaps |= uint64_t(raw[lane] - raw[0]) ^ uint64_t(lane * bytes);
    at.same = at.mask == ~0u && apart == 0;
    at.consecutive = at.mask == ~0u && gaps == 0;
    int64_t low = one, high = one;
    if (apart >> 31 == 0) {  // the addresses differ only in their lowest bits
        int32_t least = INT32_MAX, most = 0;
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            const int32_t rest = int32_t(raw[lane] & INT32_MAX);
            least = std::min(least, rest);
            most = std::max(most, rest);
        }
        const int64_t common = one & ~int64_t(INT32_MAX);
        low = common | least;
        high = common | most;
    } else {
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            low = std::min(low, raw[lane]);
            high = std::max(high, raw[lane]);
        }
    }
    const int64_t bits = one | int64_t(apart);
    if (bits & (bytes - 1)) return false;
    Space space = ins.space;
    if (space == Space::kGeneric) {
        if (low >> kWindowShift != high >> kWindowShift) return false;
        const int64_t window = low >> kWindowShift;
        if (window < 0 || window > 4) return false;
        space =
            std::array<Space, 5>{Space::kGlobal, Space::kShared, Space::kLocal, Space::kConst, Space::kParam}[window];
        const int64_t base = window << kWindowShift;
        if (base) {
            for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] -= base;
            low -= base;
            high -= base;
        }
    }
    at.space = space;
    std::memcpy(at.addresses, raw, sizeof raw);
    auto within = [&](int64_t base, uint64_t size) { return low >= base && uint64_t(high - base) + bytes <= size; };
    uint8_t* base = nullptr;
    switch (space) {
        case Space::kGlobal: {
            const int64_t number = low >> kBufferShift;
            if (number != high >> kBufferShift || number < 1 || uint64_t(number) > launch.buffers.size()) return false;
            const Region& region = launch.buffers[number - 1];
            const int64_t start = number << kBufferShift;
            if (!within(start, region.size) || (write && !region.writable)) return false;
            at.buffer = uint32_t(number - 1);
            for (uint32_t lane = 0; lane < kWarp; lane++) at.places[lane] = region.bytes + (raw[lane] - start);
            return true;
        }
        case Space::kShared: {
            const uint32_t own = block_of(at.warp);
            if (high >> kRankShift) {  // the byte is in another block of the cluster
                at.same = at.consecutive = false;
                for (uint32_t lane = 0; lane < kWarp; lane++) {
                    const int64_t rank = (raw[lane] >> kRankShift) - 1, byte = raw[lane] & ((1 << kRankShift) - 1);
                    if (rank < -1 || rank >= int64_t(cluster_blocks()) || byte + bytes > launch.shared_bytes)
                        return false;
                    const uint32_t block = rank < 0 ? own : own - own % cluster_blocks() + uint32_t(rank);
                    at.addresses[lane] = int64_t(flat({block, uint32_t(byte)}));
                    at.places[lane] = shared_.data() + at.addresses[lane];
                }
                at.base = 0;
                return true;
            }
            if (!within(0, launch.shared_bytes)) return false;
            base = shared(own);
            at.base = flat({own, 0});
            break;
        }
        case Space::kLocal:
        case Space::kArgument: {
            const bool local = space == Space::kLocal;
            at.same = at.consecutive = false;  // each lane has its own local memory
            if (!within(0, local ? launch.local_bytes : launch.argument_bytes)) return false;
            const uint32_t stride = local ? local_stride_ : argument_stride_;
            uint8_t* own = (local ? local_ : argument_).data() + size_t(first_lane) * stride;
            for (uint32_t lane = 0; lane < kWarp; lane++) at.places[lane] = own + size_t(lane) * stride + raw[lane];
            return true;
        }
        case Space::kConst:
            if (!within(0, launch.constant_bytes) || write) return false;
            base = const_cast<uint8_t*>(launch.constants.data());
            break;
        case Space::kParam:
            if (!within(0, launch.parameter_bytes) || write) return false;
            base = const_cast<uint8_t*>(launch.parameters.data());
            break;
        default: return false;
    }
    for (uint32_t lane = 0; lane < kWarp; lane++) at.places[lane] = base + raw[lane];
    return true;
}

bool Batch::resolve_plain(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return resolve_inline(ins, bytes, write, narrow, at);
}
bool Batch::resolve_avx2(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return resolve_inline(ins, bytes, write, narrow, at);
}
bool Batch::resolve_warp(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return kAvx2 ? resolve_avx2(ins, bytes, write, narrow, at) : resolve_plain(ins, bytes, write, narrow, at);
}

const std::vector<Resolved>& Batch::access(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                           uint32_t lanes_of_warp) {
    resolved_.clear();
    const bool narrow = ins.a.width == 32, write = kind != AccessKind::kRead;
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins) & lanes_of_warp;
        if (!mask) continue;
        Resolved& at = resolved_.emplace_back();
        at.warp = running_warps_[i];
        at.mask = mask;
        if (resolve_warp(ins, bytes, write, narrow, at)) continue;
        // Lanes of the warp may access several memories, so count each memory separately.
        resolved_.pop_back();
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            Resolved one;
            one.warp = running_warps_[i];
            one.mask = rest & -rest;
            if (!resolve_warp(ins, bytes, write, narrow, one)) fail_access(ins, bytes, write, lanes_of_warp);
            bool joined = false;
            for (Resolved& other : resolved_) {
                if (other.warp != one.warp || other.space != one.space || other.buffer != one.buffer ||
                    other.base != one.base)
                    continue;
                const uint32_t lane = __builtin_ctz(one.mask);
                other.mask |= one.mask;
                other.addresses[lane] = one.addresses[lane];
                other.places[lane] = one.places[lane];
                joined = true;
            }
            if (!joined) resolved_.push_back(one);
        }
    }
    if (checks_) checks_->record(*this, ins, resolved_, bytes, kind);
    return resolved_;
}

std::vector<Resolved> Batch::access_of(const Instruction& ins, uint32_t bytes, AccessKind kind, uint32_t warp,
                                       uint32_t lanes_of_warp) {
    const uint32_t all = running;
    const uint32_t first_warp = running_warps_[0], first_mask = running_masks_[0];
    Instruction unguarded = ins;
    unguarded.guard = {};
    running = 1;
    running_warps_[0] = warp;
    running_masks_[0] = lanes_of_warp;
    std::vector<Resolved> result = access(unguarded, bytes, kind);
    running = all;
    running_warps_[0] = first_warp;
    running_masks_[0] = first_mask;
    return result;
}

void Batch::require_whole_warps(const Instruction& ins) {
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins);
        if (mask && mask != ~0u)
            fail("not all 32 threads of the warp of " + coordinates(running_warps_[i] * kWarp) + " run it");
    }
}

void Batch::fail_access(const Instruction& ins, uint32_t bytes, bool write, uint32_t lanes_of_warp) {
    struct Lane {
        uint32_t number;
        uint64_t address;  // encoded like on a GPU
        int64_t signed_address;
    };
    std::vector<Lane> all;
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins) & lanes_of_warp;
        for (const uint32_t bit : LanesOf(mask)) {
            const uint32_t lane = running_warps_[i] * kWarp + bit;
            const bool narrow = ins.a.width == 32;
            const uint64_t plain = narrow ? row<uint32_t>(ins.a)[lane] : row<uint64_t>(ins.a)[lane];
            const int64_t extended = narrow ? row<int32_t>(ins.a)[lane] : row<int64_t>(ins.a)[lane];
            all.push_back(
                {lane, plain + uint64_t(ins.immediate), int64_t(uint64_t(extended) + uint64_t(ins.immediate))});
        }
    }
    // Check groups of lanes in a fixed order: by window, then by buffer.
    struct Check {
        Batch& batch;
        uint32_t bytes;
        bool write;

        [[noreturn]] void refuse(const std::vector<Lane>& part, Space space, const char* region, uint64_t start,
                                 uint64_t size) const {
            const Lane* wrong = &part.front();
            bool any_misaligned = false;
            for (const Lane& lane : part) any_misaligned |= (lane.address & (bytes - 1)) != 0;
            for (const Lane& lane : part) {
                const bool misaligned = lane.address & (bytes - 1);
                const bool outside = region && !(lane.address >= start && lane.address + bytes <= start + size);
                if (misaligned || (region ? outside : !any_misaligned)) {
                    wrong = &lane;
                    break;
                }
            }
            if (wrong->address & (bytes - 1)) batch.fail_lane(wrong->number, misaligned(bytes, space, wrong->address));
            if (!region) batch.fail_lane(wrong->number, at_address(bytes, space, wrong->address) + "in no buffer");
            batch.fail_lane(wrong->number, outside(bytes, wrong->address, start, region, size));
        }

        void split(const std::vector<Lane>& part, Space space, uint32_t shift) const {
            std::map<uint64_t, std::vector<Lane>> parts;
            for (const Lane& lane : part) parts[lane.address >> shift].push_back(lane);
            for (const auto& [key, lanes] : parts) check(lanes, space);
        }

        void check(const std::vector<Lane>& part, Space space) const {
            int64_t low = part[0].signed_address, high = low, bits = 0;
            for (const Lane& lane : part) {
                low = std::min(low, lane.signed_address);
                high = std::max(high, lane.signed_address);
                bits |= lane.signed_address;
            }
            if (bits & (bytes - 1)) refuse(part, space, nullptr, 0, 0);
            if (space == Space::kGeneric) {
                if (low >> kWindowShift != high >> kWindowShift) return split(part, space, kWindowShift);
                const int64_t window = low >> kWindowShift;
                if (window >= 0 && window <= 4) {
                    space = std::array<Space, 5>{Space::kGlobal, Space::kShared, Space::kLocal, Space::kConst,
                                                 Space::kParam}[window];
                    if (window) {
                        std::vector<Lane> moved = part;
                        for (Lane& lane : moved) {
                            lane.address -= uint64_t(window) << kWindowShift;
                            lane.signed_address -= window << kWindowShift;
                        }
                        return check(moved, space);
                    }
                }
            }
            uint64_t start = 0, size = 0;
            std::string region;
            bool writable = true;
            switch (space) {
                case Space::kGlobal: {
                    const int64_t number = low >> kBufferShift;
                    if (number != high >> kBufferShift) return split(part, space, kBufferShift);
                    if (number < 1 || uint64_t(number) > batch.launch.buffers.size())
                        refuse(part, space, nullptr, 0, 0);
                    const Region& buffer = batch.launch.buffers[number - 1];
                    start = uint64_t(number) << kBufferShift;
                    size = buffer.size;
                    region = buffer.name;
                    writable = buffer.writable;
                    break;
                }
                case Space::kShared: size = batch.launch.shared_bytes, region = "shared memory"; break;
                case Space::kLocal: size = batch.launch.local_bytes, region = "local memory"; break;
                case Space::kArgument: size = batch.launch.argument_bytes, region = "arguments of calls"; break;
                case Space::kConst:
                    size = batch.launch.constant_bytes, region = "constant memory", writable = false;
                    break;
                case Space::kParam: size = batch.launch.parameter_bytes, region = "parameters", writable = false; break;
                default: refuse(part, space, nullptr, 0, 0);
            }
            const int64_t end = int64_t(start + size);
            if (space == Space::kShared && high >> kRankShift) {
                for (const Lane& lane : part) {
                    const int64_t rank = (lane.signed_address >> kRankShift) - 1;
                    const int64_t byte = lane.signed_address & ((1 << kRankShift) - 1);
                    if (rank < -1 || rank >= int64_t(batch.cluster_blocks()) || byte + bytes > size)
                        refuse(part, space, region.c_str(), start, size);
                }
                return;
            }
            if (low < int64_t(start) || high > end - int64_t(bytes)) refuse(part, space, region.c_str(), start, size);
            if (write && !writable)
                batch.fail(batch.coordinates(part[0].number) + " writes to " + region + ", which is read-only");
        }
    };
    Check{*this, bytes, write}.check(all, ins.space);
    fail("the access was refused");  // unreachable, because one of the lanes fails
}

void Batch::count_access(const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool merges,
                         bool rows_of_matrices) {
    if (!launch.count) return;
    const size_t which = size_t(kind);
    const uint32_t active = __builtin_popcount(at.mask);
    SiteCounts unused, &site = launch.checks ? launch.checks->site(ins.source) : unused;
    site.requests++;
    site.lanes += active;
    site.bytes += uint64_t(active) * bytes;
    site.atomics += kind == AccessKind::kAtomic ? active : 0;
    switch (at.space) {
        case Space::kGlobal: {
            BufferCounts& buffer = counts.buffers[at.buffer];
            const uint64_t sectors = at.same ? 1
                                     : at.consecutive && bytes <= 32
                                         ? uint64_t((at.addresses[kWarp - 1] >> 5) - (at.addresses[0] >> 5) + 1)
                                         : distinct(at.addresses, at.mask, 5);
            site.moved += sectors;
            buffer.sectors[which].add(sectors);
            buffer.requests[which].add(1);
            buffer.bytes[which].add(uint64_t(active) * bytes);
            break;
        }
        case Space::kShared: {
            const bool load = kind == AccessKind::kRead && !rows_of_matrices;
            const bool in_turn = kind == AccessKind::kAtomic && !merges;
            const Wavefronts waves = wavefronts(at.addresses, at.mask, bytes, load, in_turn);
            if (merges)
                counts.atomic_repeats.add(wavefronts(at.addresses, at.mask, bytes, load, true).count - waves.count);
            site.moved += waves.count;
            site.ideal += waves.ideal;
            counts.wavefronts[which].add(waves.count);
            counts.ideal[which].add(waves.ideal);
            break;
        }
        case Space::kLocal:
            if (kind == AccessKind::kAtomic) break;
            counts.local.sectors[which].add(local_sectors(at.addresses, at.mask, bytes));
            counts.local.requests[which].add(1);
            counts.local.bytes[which].add(uint64_t(active) * bytes);
            break;
        default: break;
    }
    if (kind == AccessKind::kAtomic) {
        if (at.space == Space::kGlobal) counts.buffers[at.buffer].atomics.add(active);
        if (at.space == Space::kShared) counts.shared_atomics.add(active);
        if (at.space == Space::kLocal) counts.local_atomics.add(active);
    }
}

void Batch::check_races(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                        bool agree, bool is_copy) {
    if (races_) races_->record(ins.source, all, bytes, write, agree, is_copy);
}

SharedPlace Batch::shared_place(const Resolved& at, uint32_t lane) const {
    const size_t place = at.base + size_t(at.addresses[lane % kWarp]);
    return {uint32_t(place / shared_stride_), uint32_t(place % shared_stride_)};
}

std::vector<LanePlace> Batch::shared_places(const Instruction& ins, uint32_t bytes, bool write) {
    const std::vector<Resolved>& all = access(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead);
    std::vector<LanePlace> places;
    const Resolved* wrong = nullptr;
    for (const Resolved& at : all) {
        if (at.space != Space::kShared) {
            if (!wrong || std::tie(at.space, at.buffer) < std::tie(wrong->space, wrong->buffer)) wrong = &at;
            continue;
        }
        for (const uint32_t bit : LanesOf(at.mask)) {
            const uint32_t lane = at.warp * kWarp + bit;
            places.push_back({lane, shared_place(at, lane)});
        }
    }
    if (wrong) {
        const std::string region = wrong->space == Space::kGlobal  ? launch.buffers[wrong->buffer].name
                                   : wrong->space == Space::kLocal ? "local memory"
                                   : wrong->space == Space::kConst ? "constant memory"
                                                                   : "parameters";
        fail(wrong->warp, uint32_t(__builtin_ctz(wrong->mask)),
             "gives an address in " + region + ", not in shared memory");
    }
    std::sort(places.begin(), places.end(), [](const LanePlace& a, const LanePlace& b) { return a.lane < b.lane; });
    return places;
}

Resolved Batch::resolve_lane(Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write) {
    Instruction ins;
    ins.space = space;
    ins.a = program.lane_address;
    ins.source = source;
    row<uint64_t>(ins.a)[lane] = address;
    return access_of(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead, lane / kWarp, 1u << lane % kWarp)
        .at(0);
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

void Batch::count_bulk(std::vector<Moved> moved, uint32_t lane, AccessKind kind) {
    if (moved.empty()) return;
    std::sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) { return a.address < b.address; });
    if (launch.watch) watch_bulk(moved, lane, kind);
    if (!launch.count) return;
    uint64_t sectors = 0, bytes = 0, next = 0;  // next: first sector not counted yet
    for (const Moved& part : moved) {
        const uint64_t first = std::max(part.address >> 5, next), end = ((part.address + part.bytes - 1) >> 5) + 1;
        if (end > first) sectors += end - first, next = end;
        bytes += part.bytes;
    }
    BufferCounts& buffer = counts.buffers[(moved[0].address >> kBufferShift) - 1];
    buffer.sectors[size_t(kind)].add(sectors);
    buffer.requests[size_t(kind)].add(1);
    buffer.bytes[size_t(kind)].add(bytes);
}

void Batch::count_bulk_shared(uint64_t bytes, AccessKind kind) {
    constexpr const char* names[] = {"bulk.shared_read_bytes", "bulk.shared_write_bytes", "bulk.shared_atomic_bytes"};
    if (launch.count) counts.named[names[size_t(kind)]] += bytes;
}

}  // namespace kernrec

// Finds the bytes that loads and stores access, and reports invalid addresses.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "batch.h"
#include "lanes.h"
#include "text.h"

namespace kernrec {

namespace {

// Indexed by the window number of a generic address.
constexpr Space kWindows[] = {Space::kGlobal, Space::kShared, Space::kLocal, Space::kConst, Space::kParam};

struct Range {
    int64_t low, high;
    uint64_t bits;  // bits that are set in any of the addresses
};

// Add an offset to the base addresses of a warp. Give inactive lanes the address of an active lane. Return the range of
// all addresses.
constexpr auto kRange = [](const auto* bases, int64_t offset, uint32_t mask, int64_t* addresses)
                            __attribute__((always_inline)) {
                                const int64_t base = bases[__builtin_ctz(mask)];
                                const int64_t active = int64_t(uint64_t(base) + uint64_t(offset));
                                Range range{active, active, 0};
                                for (uint32_t lane = 0; lane < kWarp; lane++) {
                                    const int64_t own = int64_t(uint64_t(int64_t(bases[lane])) + uint64_t(offset));
                                    const int64_t address = kLanes.bit[lane] & mask ? own : active;
                                    addresses[lane] = address;
                                    range.low = std::min(range.low, address);
                                    range.high = std::max(range.high, address);
                                    range.bits |= uint64_t(address);
                                }
                                return range;
                            };
constexpr ByCpu<kRange> range_of;

}  // namespace

Batch::Memory Batch::memory_at(Space space, int64_t address) const {
    const auto memory = [](const char* name, const std::vector<uint8_t>& bytes, uint64_t size, bool writable) {
        return Memory{name, 0, size, const_cast<uint8_t*>(bytes.data()), writable};
    };
    switch (space) {
        case Space::kGlobal: {
            const int64_t number = address >> kBufferShift;
            if (number < 1 || uint64_t(number) > launch.buffers.size()) return {};
            const Region& buffer = launch.buffers[number - 1];
            return {buffer.name.c_str(), number << kBufferShift, buffer.size, buffer.bytes, buffer.writable};
        }
        case Space::kShared: return memory("shared memory", shared_, launch.shared_bytes, true);
        case Space::kLocal: return memory("local memory", local_, launch.local_bytes, true);
        case Space::kArgument: return memory("arguments of calls", argument_, launch.argument_bytes, true);
        case Space::kConst: return memory("constant memory", launch.constants, launch.constant_bytes, false);
        case Space::kParam: return memory("parameters", launch.parameters, launch.parameter_bytes, false);
        default: return {};
    }
}

std::optional<SharedPlace> Batch::place_in_cluster(uint32_t own, int64_t address, uint32_t bytes) const {
    const int64_t rank = (address >> kRankShift) - 1, byte = address & ((1 << kRankShift) - 1);
    if (rank < -1 || rank >= int64_t(cluster_blocks()) || byte + bytes > launch.shared_bytes) return std::nullopt;
    return SharedPlace{rank < 0 ? own : own - own % cluster_blocks() + uint32_t(rank), uint32_t(byte)};
}

// Resolve an access of the lanes in `at.mask`. Return false if it fails, or if the lanes access several memories.
bool Batch::resolve(const Instruction& ins, uint32_t bytes, bool write, Resolved& at) {
    const uint32_t first_lane = at.warp * kWarp;
    int64_t* const addresses = at.addresses;
    auto [low, high, bits] = ins.a.width == 32
                                 ? range_of(row<const int32_t>(ins.a) + first_lane, ins.immediate, at.mask, addresses)
                                 : range_of(row<const int64_t>(ins.a) + first_lane, ins.immediate, at.mask, addresses);
    if (bits & (bytes - 1)) return false;
    at.space = ins.space;
    if (at.space == Space::kGeneric) {
        const int64_t window = low >> kWindowShift;
        if (window != high >> kWindowShift || window < 0 || window >= int64_t(std::size(kWindows))) return false;
        at.space = kWindows[window];
        const int64_t base = window << kWindowShift;
        for (uint32_t lane = 0; lane < kWarp; lane++) addresses[lane] -= base;
        low -= base;
        high -= base;
    }
    if (at.space == Space::kShared && high >> kRankShift) {  // the byte is in another block of the cluster
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            const std::optional<SharedPlace> place = place_in_cluster(block_of(at.warp), addresses[lane], bytes);
            if (!place) return false;
            addresses[lane] = int64_t(flat(*place));
            at.places[lane] = shared_.data() + addresses[lane];
        }
        return true;
    }
    const Memory memory = memory_at(at.space, low);
    if (low < memory.start || uint64_t(high - memory.start) + bytes > memory.size || (write && !memory.writable))
        return false;
    uint8_t* start = memory.bytes;
    size_t stride = 0;  // bytes from one lane's memory to the next
    if (at.space == Space::kGlobal) {
        at.buffer = uint32_t((low >> kBufferShift) - 1);
    } else if (at.space == Space::kShared) {
        const auto base = int64_t(flat({block_of(at.warp), 0}));
        for (uint32_t lane = 0; lane < kWarp; lane++) addresses[lane] += base;
    } else if (at.space == Space::kLocal || at.space == Space::kArgument) {
        stride = at.space == Space::kLocal ? local_stride_ : argument_stride_;
        start += first_lane * stride;
    }
    for (uint32_t lane = 0; lane < kWarp; lane++) at.places[lane] = start + (addresses[lane] - memory.start);
    for (uint32_t lane = 1; stride && lane < kWarp; lane++) at.places[lane] += lane * stride;
    return true;
}

const std::vector<Resolved>& Batch::access(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                           uint32_t lanes_of_warp) {
    resolved_.clear();
    const bool write = kind != AccessKind::kRead;
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins) & lanes_of_warp;
        if (!mask) continue;
        Resolved& at = resolved_.emplace_back();
        at.warp = running_warps_[i];
        at.mask = mask;
        if (resolve(ins, bytes, write, at)) continue;
        // Resolve each lane by itself, because the lanes access several memories, or an access fails.
        resolved_.pop_back();
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            Resolved one;
            one.warp = running_warps_[i];
            one.mask = rest & -rest;
            const uint32_t lane = uint32_t(__builtin_ctz(rest));
            if (!resolve(ins, bytes, write, one)) fail_access(ins, bytes, one.warp * kWarp + lane);
            const auto same = std::find_if(resolved_.begin(), resolved_.end(), [&](const Resolved& other) {
                return std::tie(other.warp, other.space, other.buffer) == std::tie(one.warp, one.space, one.buffer);
            });
            if (same == resolved_.end()) {
                resolved_.push_back(one);
                continue;
            }
            same->mask |= one.mask;
            same->addresses[lane] = one.addresses[lane];
            same->places[lane] = one.places[lane];
        }
    }
    if (checks_) checks_->record(*this, ins, resolved_, bytes, kind);
    return resolved_;
}

std::vector<Resolved> Batch::access_of(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                       const std::vector<WarpMask>& lanes) {
    Instruction unguarded = ins;
    unguarded.guard = {};
    return with_lanes(lanes, [&] { return access(unguarded, bytes, kind); });
}

void Batch::require_whole_warps(const Instruction& ins) {
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins);
        if (mask && mask != ~0u)
            fail("not all 32 threads of the warp of " + coordinates(running_warps_[i] * kWarp) + " run it");
    }
}

// Throw Fault with the reason why the access of a lane cannot be resolved.
void Batch::fail_access(const Instruction& ins, uint32_t bytes, uint32_t lane) {
    uint64_t address = value(ins.a, lane) + uint64_t(ins.immediate);
    const int64_t base = ins.a.width == 32 ? int64_t(row<int32_t>(ins.a)[lane]) : int64_t(value(ins.a, lane));
    int64_t at = int64_t(uint64_t(base) + uint64_t(ins.immediate));
    Space space = ins.space;
    const auto accesses = [&] {
        return joined("accesses ", bytes, " bytes at ", space_name(space), " address ", hex(address), ", which is ");
    };
    if (address & (bytes - 1)) fail_lane(lane, joined(accesses(), "not a multiple of ", bytes));
    const int64_t window = at >> kWindowShift;
    if (space == Space::kGeneric && window >= 0 && window < int64_t(std::size(kWindows))) {
        space = kWindows[window];
        address -= uint64_t(window) << kWindowShift;
        at -= window << kWindowShift;
    }
    const Memory memory = memory_at(space, at);
    if (!memory.name) fail_lane(lane, accesses() + "in no buffer");
    const bool inside = space == Space::kShared
                            ? place_in_cluster(0, at, bytes).has_value()
                            : at >= memory.start && uint64_t(at - memory.start) + bytes <= memory.size;
    if (inside) fail_lane(lane, joined("writes to ", memory.name, ", which is read-only"));
    fail_lane(lane, joined("accesses ", bytes, " bytes at offset ", int64_t(address - uint64_t(memory.start)), " of ",
                           memory.name, ", which has ", memory.size, " bytes (address ", hex(address), ")"));
}

void Batch::check_races(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                        bool agree, bool is_copy) {
    if (races_) races_->record(ins.source, all, bytes, write, agree, is_copy);
}

SharedPlace Batch::shared_place(const Resolved& at, uint32_t lane) const {
    const int64_t place = at.addresses[lane % kWarp];
    return {uint32_t(place / shared_stride_), uint32_t(place % shared_stride_)};
}

std::vector<LanePlace> Batch::shared_places(const Instruction& ins, uint32_t bytes, bool write) {
    const std::vector<Resolved>& all = access(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead);
    std::vector<LanePlace> places;
    for (const Resolved& at : all)
        for (const uint32_t bit : LanesOf(at.mask)) {
            const uint32_t lane = at.warp * kWarp + bit;
            if (at.space != Space::kShared)
                fail_lane(lane, joined("gives an address in ", memory_at(at.space, at.addresses[bit]).name,
                                       ", not in shared memory"));
            places.push_back({lane, shared_place(at, lane)});
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
    return access_of(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead, {{lane / kWarp, 1u << lane % kWarp}})
        .at(0);
}

}  // namespace kernrec

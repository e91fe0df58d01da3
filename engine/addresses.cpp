// Finds the bytes that loads and stores access, and reports invalid addresses.
#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>

#include "batch.h"
#include "lanes.h"
#include "text.h"

namespace kernrec {

namespace {

// Indexed by the window number of a generic address.
constexpr Space kWindows[] = {Space::kGlobal, Space::kShared, Space::kLocal, Space::kConst, Space::kParam};

constexpr const char* kRegions[] = {
    "", "", "shared memory", "local memory", "constant memory", "parameters", "arguments of calls"};

}  // namespace

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
        if (window < 0 || window >= int64_t(std::size(kWindows))) return false;
        space = kWindows[window];
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

bool Batch::resolve_avx2(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return resolve_inline(ins, bytes, write, narrow, at);
}
bool Batch::resolve_warp(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return kAvx2 ? resolve_avx2(ins, bytes, write, narrow, at) : resolve_inline(ins, bytes, write, narrow, at);
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

// Throw Fault for one lane. Misaligned addresses come first. Other errors are sorted by address space and buffer.
// Within a buffer, out-of-bounds accesses precede forbidden writes.
void Batch::fail_access(const Instruction& ins, uint32_t bytes, bool write, uint32_t lanes_of_warp) {
    struct Refusal {
        std::pair<uint64_t, bool> order;
        uint32_t lane;
        std::string text;
    };
    std::optional<Refusal> first;
    for (uint32_t i = 0; i < running; i++)
        for (const uint32_t bit : LanesOf(mask(i, ins) & lanes_of_warp)) {
            const uint32_t lane = running_warps_[i] * kWarp + bit;
            const auto refuse = [&](uint64_t group, bool is_read_only, const std::string& text) {
                const std::pair<uint64_t, bool> order{group, is_read_only};
                if (!first || order < first->order) first = Refusal{order, lane, text};
            };
            uint64_t address = value(ins.a, lane) + uint64_t(ins.immediate);
            const int64_t extended =
                ins.a.width == 32 ? int64_t(row<int32_t>(ins.a)[lane]) : int64_t(value(ins.a, lane));
            int64_t at = int64_t(uint64_t(extended) + uint64_t(ins.immediate));
            Space space = ins.space;
            const auto accesses = [&] {
                return "accesses " + std::to_string(bytes) + " bytes at " + space_name(space) + " address " +
                       hex(address) + ", which is ";
            };
            if (address & (bytes - 1)) {
                refuse(0, false, accesses() + "not a multiple of " + std::to_string(bytes));
                continue;
            }
            const int64_t window = at >> kWindowShift;
            uint64_t group = ((address >> kWindowShift) << (kWindowShift - kBufferShift)) + 1;
            if (space == Space::kGeneric && window >= 0 && window < int64_t(std::size(kWindows))) {
                space = kWindows[window];
                address -= uint64_t(window) << kWindowShift;
                at -= window << kWindowShift;
            }
            uint64_t start = 0, size = 0;
            std::string region = kRegions[size_t(space)];
            bool writable = true, inside = false;
            switch (space) {
                case Space::kGlobal: {
                    const int64_t number = at >> kBufferShift;
                    group += address >> kBufferShift;
                    if (number >= 1 && uint64_t(number) <= launch.buffers.size()) {
                        const Region& buffer = launch.buffers[number - 1];
                        start = uint64_t(number) << kBufferShift;
                        size = buffer.size, region = buffer.name, writable = buffer.writable;
                    }
                    break;
                }
                case Space::kShared: size = launch.shared_bytes; break;
                case Space::kLocal: size = launch.local_bytes; break;
                case Space::kArgument: size = launch.argument_bytes; break;
                case Space::kConst: size = launch.constant_bytes, writable = false; break;
                case Space::kParam: size = launch.parameter_bytes, writable = false; break;
                default: break;
            }
            if (region.empty()) {
                refuse(group, false, accesses() + "in no buffer");
                continue;
            }
            if (space == Space::kShared && at >> kRankShift) {
                const int64_t rank = (at >> kRankShift) - 1, byte = at & ((1 << kRankShift) - 1);
                inside = rank >= -1 && rank < int64_t(cluster_blocks()) && uint64_t(byte) + bytes <= size;
            } else {
                inside = at >= int64_t(start) && uint64_t(at) + bytes <= start + size;
            }
            if (!inside)
                refuse(group, false,
                       "accesses " + std::to_string(bytes) + " bytes at offset " +
                           std::to_string(int64_t(address - start)) + " of " + region + ", which has " +
                           std::to_string(size) + " bytes (address " + hex(address) + ")");
            else if (write && !writable) refuse(group, true, "writes to " + region + ", which is read-only");
        }
    if (!first) fail("the access was refused");  // unreachable, because some lane has a fault
    fail_lane(first->lane, first->text);
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
        const bool is_global = wrong->space == Space::kGlobal;
        const std::string region = is_global ? launch.buffers[wrong->buffer].name : kRegions[size_t(wrong->space)];
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
    return access_of(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead, {{lane / kWarp, 1u << lane % kWarp}})
        .at(0);
}

}  // namespace kernrec

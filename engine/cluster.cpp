// Instructions of clusters and of register sharing: `elect mapa getctarank setmaxnreg` (PTX ISA, sections 9.7.13.14,
// 9.7.9.24, 9.7.9.25 and "setmaxnreg"). waits.cpp implements cluster barriers.
#include "dispatch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {
namespace {

uint64_t map_to_rank(uint64_t address, uint32_t rank) {
    constexpr uint64_t kAbove = ~((uint64_t(1) << (kRankShift + kRankBits)) - 1);  // window bits of a generic address
    return (address & kAbove) | (address & ((1u << kRankShift) - 1)) | (uint64_t(rank) + 1) << kRankShift;
}

uint32_t rank_of_address(uint64_t address, uint32_t own_rank) {
    const uint32_t above = uint32_t(address >> kRankShift) & ((1u << kRankBits) - 1);
    return above ? above - 1 : own_rank;
}

// Elect a lane of the mask. The result depends only on the mask.
void elect(Batch& batch, const Instruction& ins) {
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        uint32_t& elected = batch.flags(ins.e)[warp];
        for (const uint32_t lane : LanesOf(mask)) {
            const uint32_t named = batch.row<uint32_t>(ins.a)[first + lane];
            const bool leads = named && uint32_t(__builtin_ctz(named)) == lane;
            elected = leads ? elected | 1u << lane : elected & ~(1u << lane);
            if (ins.d && named) batch.row<uint32_t>(ins.d)[first + lane] = uint32_t(__builtin_ctz(named));
        }
    });
}

const Registration kElect({"elect"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers != Modifiers{"sync"} || ins.operands.size() != 2 || ins.operands[0].kind != OperandKind::kPair)
        refuse();
    const Operand& target = ins.operands[0];
    const Row a = decoder.read(ins.operands[1], "b32");
    const Row d = target.items[0].kind == OperandKind::kNone ? Row{} : decoder.write(target.items[0], "b32");
    const Row e = decoder.write(target.items[1], "pred");
    decoder.emit(elect, d, a, {}, {}, e);
});

void map_addresses(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t address = map_to_rank(address_at(batch, ins, lane), uint32_t(batch.value(ins.b, lane)));
        batch.put_value(ins.d, lane, address);
    });
}

const Registration kMapa({"mapa"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 3) refuse();
    const std::string& type = ins.type();
    if ((type != "u32" && type != "u64") || (type == "u32" && !ins.has("shared"))) refuse();
    const auto [base, offset] = decoder.address(as_address(ins.operands[1]));
    const Row rank = decoder.value(ins.operands[2], "u32"), d = decoder.write(ins.operands[0], type);
    decoder.emit(map_addresses, d, base, rank).immediate = offset;
});

void ranks_of_addresses(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint32_t own = batch.lane_block(lane) % batch.cluster_blocks();
        batch.row<uint32_t>(ins.d)[lane] = rank_of_address(address_at(batch, ins, lane), own);
    });
}

const Registration kRank({"getctarank"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2) refuse();
    const auto [base, offset] = decoder.address(as_address(ins.operands[1]));
    const Row d = decoder.write(ins.operands[0], "b32");
    Instruction& made = decoder.emit(ranks_of_addresses, d, base);
    made.immediate = offset;
});

void move_registers(Batch& batch, const Instruction& ins) {
    const auto registers = uint32_t(ins.immediate);
    const bool grows = ins.mode;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        if (registers % 8 || registers < 24 || registers > 256)
            batch.fail(joined(registers, " registers, where a multiple of 8 from 24 to 256 is expected"));
        uint32_t& held = batch.work().registers[warp];
        if (held && (grows ? held > registers : held < registers))
            batch.fail(joined(registers, " registers are ", grows ? "fewer" : "more", " than the ", held,
                              " that each thread has"));
        held = registers;
        if (grows) batch.work().raised[warp] = batch.source;
    });
}

const Registration kSetMaxRegisters({"setmaxnreg"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers[0] != "inc" && ins.modifiers[0] != "dec") refuse();
    Instruction& made = decoder.emit(move_registers);
    made.immediate = literal(ins.operands[0]);
    made.mode = ins.modifiers[0] == "inc";
});

}  // namespace
}  // namespace kernrec

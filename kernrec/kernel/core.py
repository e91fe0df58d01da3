"""Runs flat programs: the expressions of a space on a problem, all of them in one call.

One source in two forms. Compiled (`core.pxd` has the types, `hatch_build.py` builds it), a register is a stretch of one
array, and each instruction loops over the combinations of its domain. As plain Python, a register is an element of a
list that holds a whole column, and each loop runs once. `kernrec.kernel.program` makes the instructions and lays out
registers for either form.
"""

from typing import Any

from kernrec.kernel.arithmetic import (
    absolute,
    add,
    as_integer,
    both,
    ceil_div,
    choose,
    either,
    equal,
    floor_divide,
    floor_sum,
    gather,
    less,
    less_equal,
    log2,
    magic_mul,
    magic_shift,
    maximum,
    minimum,
    modulo,
    multiply,
    negation,
    power,
    power_of_two,
    subtract,
    truth,
)

FIELDS = 12
"""Numbers of an instruction: its operation, result, combinations and index, and four operands with their steps: 0 for
operands with one value for all combinations, else 1."""
(
    MULTIPLY, CEIL_DIV, GATHER, ADD, SUBTRACT, FLOOR_DIVIDE, MODULO, EQUAL, LESS, LESS_EQUAL, BOTH, EITHER, NEGATION,
    CHOOSE, MINIMUM, MAXIMUM, TRUTH, AS_INTEGER, POWER, ABSOLUTE, LOG2, POWER_OF_TWO, MAGIC_MUL, MAGIC_SHIFT, FLOOR_SUM,
) = range(25)  # fmt: skip
"""Operations, by name of `kernrec.kernel.arithmetic`."""


def run(code: Any, first: int, last: int, values: Any, indexes: Any) -> None:
    """Runs the instructions from `first` to before `last`.

    Args:
        code: the numbers of all instructions, one instruction after the other.
        values: the registers.
        indexes: of what is spread over combinations, which one each takes.
    """
    for number in range(first, last):
        place = number * FIELDS
        operation, out, count, index = code[place], code[place + 1], code[place + 2], code[place + 3]
        a, a_step, b, b_step = code[place + 4], code[place + 5], code[place + 6], code[place + 7]
        c, c_step, d, d_step = code[place + 8], code[place + 9], code[place + 10], code[place + 11]
        if operation == MULTIPLY:
            for i in range(count):
                values[out + i] = multiply(values[a + i * a_step], values[b + i * b_step])
        elif operation == CEIL_DIV:
            for i in range(count):
                values[out + i] = ceil_div(values[a + i * a_step], values[b + i * b_step])
        elif operation == GATHER:
            for i in range(count):
                values[out + i] = gather(values, a, indexes, index, i)
        elif operation == ADD:
            for i in range(count):
                values[out + i] = add(values[a + i * a_step], values[b + i * b_step])
        elif operation == SUBTRACT:
            for i in range(count):
                values[out + i] = subtract(values[a + i * a_step], values[b + i * b_step])
        elif operation == FLOOR_DIVIDE:
            for i in range(count):
                values[out + i] = floor_divide(values[a + i * a_step], values[b + i * b_step])
        elif operation == MODULO:
            for i in range(count):
                values[out + i] = modulo(values[a + i * a_step], values[b + i * b_step])
        elif operation == EQUAL:
            for i in range(count):
                values[out + i] = equal(values[a + i * a_step], values[b + i * b_step])
        elif operation == LESS:
            for i in range(count):
                values[out + i] = less(values[a + i * a_step], values[b + i * b_step])
        elif operation == LESS_EQUAL:
            for i in range(count):
                values[out + i] = less_equal(values[a + i * a_step], values[b + i * b_step])
        elif operation == BOTH:
            for i in range(count):
                values[out + i] = both(values[a + i * a_step], values[b + i * b_step])
        elif operation == EITHER:
            for i in range(count):
                values[out + i] = either(values[a + i * a_step], values[b + i * b_step])
        elif operation == NEGATION:
            for i in range(count):
                values[out + i] = negation(values[a + i * a_step])
        elif operation == CHOOSE:
            for i in range(count):
                values[out + i] = choose(values[a + i * a_step], values[b + i * b_step], values[c + i * c_step])
        elif operation == MINIMUM:
            for i in range(count):
                values[out + i] = minimum(values[a + i * a_step], values[b + i * b_step])
        elif operation == MAXIMUM:
            for i in range(count):
                values[out + i] = maximum(values[a + i * a_step], values[b + i * b_step])
        elif operation == TRUTH:
            for i in range(count):
                values[out + i] = truth(values[a + i * a_step])
        elif operation == AS_INTEGER:
            for i in range(count):
                values[out + i] = as_integer(values[a + i * a_step])
        elif operation == POWER:
            for i in range(count):
                values[out + i] = power(values[a + i * a_step], values[b + i * b_step])
        elif operation == ABSOLUTE:
            for i in range(count):
                values[out + i] = absolute(values[a + i * a_step])
        elif operation == LOG2:
            for i in range(count):
                values[out + i] = log2(values[a + i * a_step])
        elif operation == POWER_OF_TWO:
            for i in range(count):
                values[out + i] = power_of_two(values[a + i * a_step])
        elif operation == MAGIC_MUL:
            for i in range(count):
                values[out + i] = magic_mul(values[a + i * a_step])
        elif operation == MAGIC_SHIFT:
            for i in range(count):
                values[out + i] = magic_shift(values[a + i * a_step])
        else:
            for i in range(count):
                values[out + i] = floor_sum(
                    values[a + i * a_step], values[b + i * b_step], values[c + i * c_step], values[d + i * d_step]
                )


def conjunction(truths: Any, values: Any, indexes: Any, holds: Any) -> None:
    """Clears `holds` (rows,) where one of the conditions is false.

    Args:
        truths: of each condition its register, and where the combinations of the rows begin in `indexes`.
        holds: as Python a list with one column.
    """
    for i in range(len(holds)):
        all_hold = holds[i]
        for number in range(len(truths) // 2):
            all_hold = both(all_hold, truth(gather(values, truths[2 * number], indexes, truths[2 * number + 1], i)))
        holds[i] = all_hold

// Converts numbers to text for messages, and text to numbers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>

namespace kernrec {

// Return texts and numbers as one text.
template <class... Parts>
std::string joined(const Parts&... parts) {
    const auto text_of = [](const auto& part) -> std::string {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) return std::to_string(part);
        else return part;
    };
    return (text_of(parts) + ...);
}

// Return "0x" and at least `digits` hexadecimal digits.
inline std::string hex(uint64_t value, int digits = 1) {
    std::string text;
    for (; value || digits > 0; value >>= 4, --digits) text.insert(text.begin(), "0123456789abcdef"[value & 15]);
    return "0x" + text;
}

// Return the value of a text with at most nine decimal digits, or -1.
inline int parse_int(const std::string& text) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
    return std::atoi(text.c_str());
}

}  // namespace kernrec

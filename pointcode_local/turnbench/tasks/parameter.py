"""Functions that get one more parameter."""

from __future__ import annotations

from pointcode_local.turnbench.task import Solution, Task, holds, matches, prints, text, untouched

_GREET = b'def greet(name):\n    return "Hello, " + name + "!"\n'
_PRICE = b"def round_price(value):\n    return round(value, 2)\n"
_NET = b'def options(host, port):\n    return {"host": host, "port": port}\n'
_SORT = b"def sort_names(names):\n    return sorted(names)\n"
_CART = text(
    """
    function total(items) {
      let sum = 0;
      for (const item of items) {
        sum += item.price;
      }
      return sum;
    }

    module.exports = { total };
    """
)
_CAR = text(
    """
    class Car:
        def __init__(self, brand):
            self.brand = brand

        def describe(self):
            return self.brand


    print(Car("Volvo").describe())
    """
)

TASKS = (
    Task(
        "greeting",
        'Add a parameter greeting with the default "Hello" to the function greet in greet.py and use it in place of '
        "the fixed word.",
        (
            holds('from greet import greet\nassert greet("Ada") == "Hello, Ada!"'),
            holds('from greet import greet\nassert greet("Ada", greeting="Hi") == greet("Ada", "Hi") == "Hi, Ada!"'),
        ),
        Solution({"greet.py": b'def greet(name, greeting="Hello"):\n    return greeting + ", " + name + "!"\n'}),
        {"greet.py": _GREET},
    ),
    Task(
        "digits",
        "Add a parameter digits (default 2) to round_price in price.py; the price is rounded to that many digits.",
        (
            holds("from price import round_price\nassert round_price(1.23456) == 1.23"),
            holds("from price import round_price\nassert round_price(1.23456, digits=3) == 1.235"),
        ),
        Solution({"price.py": b"def round_price(value, digits=2):\n    return round(value, digits)\n"}),
        {"price.py": _PRICE},
    ),
    Task(
        "timeout",
        "Give the function options in net.py a third parameter timeout with default 30, and put it into the returned "
        'dict under the key "timeout".',
        (
            holds('from net import options\nassert options("a", 1) == {"host": "a", "port": 1, "timeout": 30}'),
            holds('from net import options\nassert options("a", 1, timeout=5)["timeout"] == 5'),
        ),
        Solution(
            {
                "net.py": b"def options(host, port, timeout=30):\n"
                b'    return {"host": host, "port": port, "timeout": timeout}\n'
            }
        ),
        {"net.py": _NET},
    ),
    Task(
        "reverse",
        "Add an optional argument reverse=False to sort_names in order.py. When it is True the names come in "
        "descending order.",
        (
            holds('from order import sort_names\nassert sort_names(["b", "a", "c"]) == ["a", "b", "c"]'),
            holds('from order import sort_names\nassert sort_names(["b", "a", "c"], reverse=True) == ["c", "b", "a"]'),
        ),
        Solution({"order.py": b"def sort_names(names, reverse=False):\n    return sorted(names, reverse=reverse)\n"}),
        {"order.py": _SORT},
    ),
    Task(
        "javascript-tax",
        "Add a second parameter tax with the default 0 to the function total in cart.js; the result is the sum plus "
        "the tax.",
        (
            matches(
                "cart.js",
                r"function total\(items, ?tax ?= ?0\) ?\{",
                r"for \(const item of items\) \{\s+sum \+= item\.price;\s+\}",
                r"return \(?(sum ?\+ ?tax|tax ?\+ ?sum)\)?;|sum (=|\+=) (sum \+ )?tax;\s+return sum;|let sum = tax;",
                r"module\.exports = \{ total \};",
            ),
        ),
        Solution(
            {
                "cart.js": _CART.replace(b"total(items)", b"total(items, tax = 0)").replace(
                    b"return sum", b"return sum + tax"
                )
            }
        ),
        {"cart.js": _CART},
    ),
    Task(
        "constructor",
        'Add a parameter color with default "red" to the constructor of Car in car.py and keep it in self.color.',
        (
            prints("car.py", "Volvo"),
            holds('from car import Car\nassert Car("Saab").color == "red" and Car("Saab", "blue").color == "blue"'),
            untouched("car.py"),
        ),
        Solution(
            {
                "car.py": _CAR.replace(b"self, brand)", b'self, brand, color="red")').replace(
                    b"self.brand = brand", b"self.brand = brand\n        self.color = color"
                )
            }
        ),
        {"car.py": _CAR},
    ),
)

"""Made-up arithmetic and algebra problems, as many as wanted: prompts that no benchmark holds."""

import random
from collections.abc import Iterator

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
NAMES = (
    *("Ada", "Bruno", "Carla", "Dmitri", "Elif", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi"),
    *(
        "Lena",
        "Mateo",
        "Nadia",
        "Oskar",
        "Priya",
        "Quinn",
        "Rosa",
        "Samir",
        "Tara",
        "Uma",
        "Viktor",
    ),
    *("Wen", "Ximena", "Yusuf", "Zoe", "The baker", "The teacher", "A farmer", "The shop"),
)
THINGS = (
    *("apples", "pencils", "stickers", "marbles", "books", "cookies", "tickets", "bottles"),
    *("candles", "shells", "bricks", "flowers", "eggs", "cards", "coins", "chairs", "stamps"),
    *("ribbons", "oranges", "boxes of nails", "balloons", "muffins", "postcards", "ropes"),
)
PLACES = ("market", "school", "library", "garage", "harbour", "park", "museum", "factory")
STORIES = (
    "{a} has {x} {t}. {b} gives {a} {y} more, and then {a} loses {z} of them. How many {t} does "
    "{a} have now?",
    "{a} buys {x} {t} for ${y} each and pays with a ${big} note. How much change does {a} get?",
    "{a} reads {x} pages every day. A book has {big} pages. How many days does {a} need for {z} "
    "such books?",
    "At the {p} there are {x} shelves with {y} {t} on each. {z} {t} broke. How many are whole?",
    "{a} earns ${x} an hour and works {y} hours a day, {z} days a week. How much does {a} earn in "
    "{k} weeks?",
    "{a} and {b} share {big} {t}. {a} gets twice as many as {b}. How many {t} does {b} get?",
    "A train travels at {x} miles per hour for {k} hours and then at {y} miles per hour for {z} "
    "hours. How far does it travel in total?",
    "{a} is {x} years old. {b} is {k} times as old as {a}. How old will {b} be in {y} years?",
    "A recipe needs {x} grams of flour for {k} people. How much does {a} need for {y}?",
    "{a} sold {x} {t} in the morning and half as many in the afternoon. Each costs ${k}. How much "
    "money did {a} make?",
    "There are {big} students at the {p}. {x}% of them walk and the rest take the bus. How many "
    "take the bus?",
    "{a} saves ${x} every week. After {y} weeks {a} spends ${z} on {t}. How much money is left?",
    "A tank holds {big} litres. It is filled at {x} litres per minute and leaks {k} litres per "
    "minute. How long does it take to fill?",
    "{a} packs {big} {t} into boxes of {k}. A box weighs {x} kilograms. What do all weigh?",
    "A shirt costs ${big}. It is reduced by {x}% and then {a} uses a coupon for ${k}. What does "
    "{a} pay?",
    "{a} plants {x} rows of {y} trees. A third of the trees bear fruit, {k} each. How many fruits "
    "are there?",
    "{a} runs {k} laps of {x} metres and {b} runs {z} laps of {y} metres. Who runs farther, and by "
    "how much?",
    "{a} made {x} {t} on Monday, {y} more than that on Tuesday, and on Wednesday as many as on "
    "both days together. How many {t} did {a} make in all?",
)
PROBLEMS = (
    "Solve for $x$: ${k}x + {x} = {big}$.",
    "Find the value of ${x}^2 - {k} \\cdot {y}$.",
    "What is the greatest common divisor of ${big}$ and ${x}$?",
    "What is the least common multiple of ${x}$ and ${y}$?",
    "Compute $\\frac{{{x}}}{{{k}}} + \\frac{{{y}}}{{{z}}}$ and simplify.",
    "If $f(x) = {k}x^2 - {x}x + {y}$, what is $f({z})$?",
    "The sum of two numbers is ${big}$ and their difference is ${k}$. Find both numbers.",
    "Find all roots of $x^2 - {x}x + {y} = 0$.",
    "What is the remainder when ${big}$ is divided by ${k}$?",
    "A rectangle has sides of length ${x}$ and ${y}$. What is the length of its diagonal?",
    "Find the area of a circle with radius ${k}$. Express your answer in terms of $\\pi$.",
    "How many ways are there to choose ${k}$ people from a group of ${x}$?",
    "Two fair dice are rolled. What is the probability that the sum is ${k}$?",
    "An arithmetic sequence begins ${k}, {x}, \\ldots$. What is its ${y}$th term?",
    "What is the slope of the line through the points $({k}, {x})$ and $({y}, {z})$?",
    "Simplify $({k}x + {x})({z}x - {y})$.",
    "Evaluate $\\log_{k} {k}^{{{x}}}$.",
    "In a right triangle the legs are ${x}$ and ${y}$. What is $\\tan A$ for the angle opposite "
    "the first?",
    "What is the sum of the first ${x}$ positive multiples of ${k}$?",
    "Let $z = {k} + {x}i$ and $w = {y} - {z}i$. Compute $z \\cdot w$.",
    "Convert ${x}_{{10}}$ to base ${k}$.",
    "If ${x}\\%$ of a number is ${y}$, what is the number?",
)


def word_problems(count: int, seed: int) -> Iterator[str]:
    """The same ones for the same seed; two of three are stories, half ask for a boxed answer."""
    draw = random.Random(seed)
    for _ in range(count):
        template = draw.choice(STORIES if draw.random() < 2 / 3 else PROBLEMS)
        a, b = draw.sample(NAMES, 2)
        text = template.format(
            a=a,
            b=b if b[:2] not in ("A ", "Th") else b[0].lower() + b[1:],
            t=draw.choice(THINGS),
            p=draw.choice(PLACES),
            x=draw.randint(3, 60),
            y=draw.randint(2, 40),
            z=draw.randint(2, 20),
            k=draw.randint(2, 9),
            big=draw.randint(60, 900),
        )
        yield text + (BOXED if draw.random() < 0.5 else "")

"""Runs JAX's own tests of ragged collectives on fastjax, on CPU devices.

    python -P tests/traced/jax_tests.py JAX/tests/ragged_collective_test.py [names of tests]

JAX's repository has the file, and its wheels do not; take that of the version which is installed.
The tests need the package absl-py. What they say of CPU devices, which they skip, and of the text
of lowered programs is taken out; one test is not run, since fastjax can do what it wants refused.
"""

import ast
import sys
import unittest
from pathlib import Path

import jax

import fastjax

# vmap with axis_index_groups works here.
REFUSED_BY_JAX_ONLY = "test_ragged_all_to_all_vmap_unsupported_axis_index_groups"


class _OfThePlatform(ast.NodeTransformer):
    """Takes out skips on CPU devices, and assertions on the text of lowered programs."""

    def visit_If(self, node: ast.If) -> ast.AST:
        if "'cpu'" in ast.unparse(node.test) and "skipTest" in ast.unparse(node.body[0]):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        text = ast.unparse(node)
        if text.startswith("self.assert") and "mlir_module" in text:
            return ast.copy_location(ast.Pass(), node)
        return node


def load(path: Path) -> dict:
    """What the file of tests defines, without what is particular to other platforms."""
    tree = _OfThePlatform().visit(ast.parse(path.read_text()))
    names = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(tree, path, "exec"), names)
    return names


def suite(names: dict, wanted: list[str]) -> unittest.TestSuite:
    """The tests among what a file defines, or those that are wanted."""
    found = unittest.TestSuite()
    for case in names.values():
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            for name in unittest.defaultTestLoader.getTestCaseNames(case):
                if name in wanted if wanted else name != REFUSED_BY_JAX_ONLY:
                    found.addTest(case(name))
    return found


def main(path: str, *wanted: str) -> bool:
    """Runs the tests; whether all passed."""
    jax.config.update("jax_num_cpu_devices", 8)
    sys.argv[1:] = []  # which JAX reads as its own flags
    tests = suite(load(Path(path)), list(wanted))
    with fastjax.swap_ragged_all_to_all():
        result = unittest.TextTestRunner(verbosity=2).run(tests)
    return result.wasSuccessful() and result.testsRun > 0 and not result.skipped


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))

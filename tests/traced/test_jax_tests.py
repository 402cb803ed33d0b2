"""The script that runs JAX's own tests, on a file of ours in the style of theirs."""

import textwrap
import unittest

import jax_tests

LIKE_JAX = f"""
    import unittest
    from jax import lax


    class Case(unittest.TestCase):
        def setUp(self):
            if jtu.test_device_matches(['cpu']):
                self.skipTest('not on CPU')

        def test_name(self):
            mlir_module = ''
            self.assertIn('ragged_all_to_all', mlir_module)
            self.assertEqual(lax.ragged_all_to_all.__module__, 'jax')

        def {jax_tests.REFUSED_BY_JAX_ONLY}(self):
            pass
    """


def test_what_is_of_other_platforms_is_taken_out(tmp_path):
    path = tmp_path / "like_jax.py"
    path.write_text(textwrap.dedent(LIKE_JAX))
    names = jax_tests.load(path)
    result = unittest.TestResult()
    jax_tests.suite(names, []).run(result)
    assert (result.testsRun, result.skipped, result.errors) == (1, [], [])
    ((_, told),) = result.failures
    assert "!= 'jax'" in told
    assert jax_tests.suite(names, [jax_tests.REFUSED_BY_JAX_ONLY]).countTestCases() == 1

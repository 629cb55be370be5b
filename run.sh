#!/usr/bin/env bash
# ./run.sh            install into .venv if need be, and run the main job on the bundled digits example
# ./run.sh torch      the same with PyTorch, in an environment without TensorFlow (.venv-torch)
# ./run.sh jax        the same with JAX, over eight devices (.venv-jax)
# ./run.sh test       run the test suite (more arguments go to pytest; --slow adds the long suites)
# ./run.sh docs       build the documentation into build/site; a warning is an error
# ./run.sh release X.Y.Z   set the version, date the changelog, build wheel and source into dist/
# ./run.sh PROGRAM …  detrain run PROGRAM … in the same environment
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
venv=${DETRAIN_VENV:-$here/.venv}

install() {  # EXTRAS [REQUIREMENT…]: once for each state of pyproject.toml
  local size="TensorFlow is"
  case $1 in torch*) size="PyTorch is" ;; jax*) size="JAX is" ;; esac
  local stamp="$venv/.detrain-$1"
  if [ ! -x "$venv/bin/python" ]; then
    echo "making $venv" >&2
    "$python" -m venv "$venv"
  fi
  if ! cmp -s "$here/pyproject.toml" "$stamp" 2>/dev/null; then
    echo "installing detrain[$1] ($size large: a minute or two)" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$here[$1]" "${@:2}"
    cp "$here/pyproject.toml" "$stamp"
  fi
}

case "${1:-}" in
  test)
    shift
    install tensorflow,examples,test,docs
    cd "$here"
    # The tests start thousands of processes. Where Python is told to write no bytecode, each would compile detrain anew.
    "$venv/bin/python" -m compileall -q detrain tests examples
    # One more process than cores: some wait for a disk or for a process they have started.
    exec "$venv/bin/python" -m pytest -n "$(($(getconf _NPROCESSORS_ONLN) + 1))" --dist worksteal "$@"
    ;;
  docs)
    "$venv/bin/python" -c "import detrain, furo, myst_parser" 2>/dev/null || install docs
    "$venv/bin/python" -m sphinx -W --keep-going -q -j 2 "$here/docs" "$here/build/site"
    echo "the documentation is in build/site/index.html"
    ;;
  release)
    install tensorflow,examples,test,docs
    exec "$venv/bin/python" "$here/release.py" "${@:2}"
    ;;
  "" | torch | jax)
    program=(train.py)
    extras=(tensorflow,examples)
    case "${1:-}" in  # the versions that the tests use
      torch) program=(torch_train.py) extras=(torch,examples torch==2.13.0) ;;
      jax) program=(jax_train.py --devices 8) extras=(jax,examples jax==0.10.2) ;;
    esac
    venv=${DETRAIN_VENV:-$here/.venv${1:+-$1}}
    install "${extras[@]}"
    home=${CKPT_DIR:-$here/ckpt${1:+-$1}}
    "$venv/bin/detrain" run --ckpt "$home" "$here/examples/digits/${program[0]}" "${program[@]:1}"
    echo
    "$venv/bin/detrain" ckpt ls "$home"
    echo
    echo "The checkpoints are in $home. Run this again: it resumes from the newest and ends with the same weights."
    ;;
  *)
    install tensorflow,examples
    exec "$venv/bin/detrain" run "$@"
    ;;
esac

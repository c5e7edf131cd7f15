#!/bin/bash
# Sets up a machine for development: `environment` makes .venv, or brings it up to date, `etcd` sees to an etcd for the
# tests, and `mlflow` to a trace viewer for those that need one. `make` calls all; each does nothing where nothing has changed.
# As root on Debian it installs what is missing; otherwise it says in one line what to install, and stops.
set -euo pipefail
shopt -s inherit_errexit
PYTHON=${PYTHON:-}
cd "$(dirname "$0")/.."

stop() {
    echo "$1" >&2
    exit 1
}

# A Python of 3.11 to 3.13 that can make environments; Debian ships ensurepip apart, in python3-venv.
suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

can_make_environments() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

choose_python() {
    local candidate
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if suits "$candidate" && can_make_environments "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
        if suits "$candidate"; then
            install_package python3-venv "making .venv" >&2
            can_make_environments "$candidate" || stop "$candidate cannot make environments: it has no ensurepip"
            echo "$candidate"
            return
        fi
    done
    stop "needs Python 3.11, 3.12 or 3.13: install one, or name it with PYTHON=…"
}

# Debian would start a daemon that comes with a package, and start it again with every boot: neither is wanted here. Nothing
# is changed for a package that is already there, and a policy that the machine has stays in force.
install_package() {
    local package=$1 purpose=$2 policy=/usr/sbin/policy-rc.d
    if [[ $EUID -ne 0 ]] || ! type -P apt-get >/dev/null; then
        stop "$purpose needs the package $package: sudo apt-get install $package"
    fi
    echo "installing $package for $purpose"
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        trap "rm -f $policy" EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    apt-get install -y -qq --no-install-recommends "$package" </dev/null >/dev/null
}

environment() {
    if [[ -n $PYTHON ]] && ! suits "$PYTHON"; then
        stop "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13"
    fi
    if ! suits .venv/bin/python || [[ -n $PYTHON && $(version "$PYTHON") != "$(version .venv/bin/python)" ]]; then
        local python
        python=$(choose_python)
        echo "making .venv with $python ($("$python" --version))"
        "$python" -m venv --clear .venv
    fi
    local made_from
    made_from=$(version .venv/bin/python; sha256sum pyproject.toml requirements.lock)
    if [[ $(cat .venv/made-from 2>/dev/null) == "$made_from" ]]; then
        return
    fi
    echo "installing into .venv what requirements.lock names"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
    echo "$made_from" >.venv/made-from
}

version() {
    "$1" -c 'import sys; print(sys.version)'
}

etcd() {
    if ! type -P etcdctl >/dev/null; then  # Debian has it in a package of its own, and the server's only recommends that
        install_package etcd-client "testing against a real etcd"
    fi
    if type -P etcd >/dev/null; then
        return
    fi
    install_package etcd-server "testing against a real etcd"
    if type -P systemctl >/dev/null; then
        systemctl disable --quiet etcd.service
    else
        update-rc.d etcd disable
    fi
}

# Unlike .venv this is chosen anew by pip where it is made: what is tested against is whatever MLflow its users install.
mlflow() {
    if build/mlflow/bin/mlflow --version &>/dev/null; then
        return
    fi
    echo "installing MLflow into build/mlflow"
    local python
    python=$(choose_python)
    mkdir -p build
    "$python" -m venv --clear build/mlflow
    build/mlflow/bin/python -m pip install -qq --disable-pip-version-check 'mlflow>=3.17,<4'
}

case ${1:-} in
environment | etcd | mlflow) "$1" ;;
*) stop "usage: $0 environment|etcd|mlflow" ;;
esac

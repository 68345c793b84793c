#!/usr/bin/env bash
# Becomes a systemd that runs the units of an installed tree, in namespaces of its own, over a copy
# of this machine's files that nobody else sees. For root; systemd_test.py starts it.
#
#   systemd_root.sh TREE FOLDER   TREE: the installed one; FOLDER: an empty one, for mounts
#
# Its cgroups are below tessera-deploy-PID, so that it cannot take processes of others for its own.
set -euo pipefail

readonly TREE=$1 FOLDER=$2
readonly ROOT=$FOLDER/root
# Of this machine, not of a container.
readonly MASKED=(
  console-getty dbus getty@tty1 systemd-logind systemd-modules-load systemd-networkd
  systemd-remount-fs systemd-resolved systemd-sysctl systemd-timesyncd systemd-udev-trigger
  systemd-udevd
)

enter_namespaces() {
  local cgroups
  cgroups=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)
  mkdir "$cgroups/tessera-deploy-$$"
  echo $$ >"$cgroups/tessera-deploy-$$/cgroup.procs"
  exec unshare --mount --pid --fork --cgroup --ipc --uts --net --kill-child \
    "$0" "$TREE" "$FOLDER" inside
}

make_root() {
  mount --make-rprivate /
  mount -t tmpfs tessera "$FOLDER"
  mkdir "$FOLDER/upper" "$FOLDER/work" "$ROOT"
  mount -t overlay -o "lowerdir=/,upperdir=$FOLDER/upper,workdir=$FOLDER/work" tessera "$ROOT"
  mount --bind "$TREE" "$ROOT/usr/local"
  mount -t proc tessera "$ROOT/proc"
  mount --bind "$ROOT/proc/sys" "$ROOT/proc/sys"
  mount -o remount,bind,ro "$ROOT/proc/sys"
  mount -t sysfs -o ro tessera "$ROOT/sys"
  mount -t cgroup2 tessera "$ROOT/sys/fs/cgroup"
  mount --rbind /dev "$ROOT/dev"
  local path
  for path in run tmp var/tmp; do mount -t tmpfs tessera "$ROOT/$path"; done
}

set_up_units() {
  local units=$ROOT/etc/systemd/system name
  rm -rf "$units"/*.wants
  for name in "${MASKED[@]}"; do ln -sf /dev/null "$units/$name.service"; done
  printf '%s\n' '[Unit]' 'Wants=tesserad.service tessera-agent.service' 'Requires=basic.target' \
    'After=basic.target' >"$units/tessera-test.target"
  chroot "$ROOT" systemd-sysusers /usr/local/lib/sysusers.d/tessera.conf
  chroot "$ROOT" install -d -o tessera -g tessera /srv/tessera
}

if [[ ${3:-} != inside ]]; then
  enter_namespaces
fi
make_root
set_up_units
cd "$ROOT"
pivot_root . mnt
cd /
umount -l /mnt
exec env -i container=tessera PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
  /lib/systemd/systemd --system --unit=tessera-test.target --log-target=console --show-status=no

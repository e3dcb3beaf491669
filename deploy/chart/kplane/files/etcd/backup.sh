# Saves etcd to $BACKUPS/<UTC time>.db, and keeps the newest $KEEP, or fewer where there is no room. ETCDCTL_* say which etcd.
set -eu
umask 077

name=$(date -u +%Y%m%dT%H%M%SZ).db
partial=$BACKUPS/.$name.partial
# etcdctl writes to a file of the same name with .part at its end.
trap 'rm -f "$partial" "$partial.part"' EXIT
# What backups left that were killed.
find "$BACKUPS" -maxdepth 1 -name '.*.partial*' -mmin +120 -delete

# The snapshots, from the oldest to the newest.
snapshots() {
  find "$BACKUPS" -maxdepth 1 -name '[0-9]*T[0-9]*Z.db' | sort
}

remove() {
  rm -f "$1"
  echo "removed $(basename "$1")"
}

# Room for one more like the newest, which stays in any case: on a volume that is full no backup would ever succeed again.
newest=$(snapshots | tail -n 1)
if [ -n "$newest" ]; then
  needed=$(($(stat -c %s "$newest") / 1024 * 11 / 10))
  while [ "$(df -k --output=avail "$BACKUPS" | tail -n 1)" -lt "$needed" ]; do
    oldest=$(snapshots | head -n 1)
    if [ "$oldest" = "$newest" ]; then
      echo "The volume has less room than $needed KiB besides the newest snapshot: make it larger (etcd.backup.storageSize)." >&2
      break
    fi
    remove "$oldest"
  done
fi

etcdctl snapshot save --dial-timeout=30s --command-timeout=30m "$partial"
etcdutl snapshot status --write-out=table "$partial"
mv "$partial" "$BACKUPS/$name"
echo "saved $name"

snapshots | head -n "-$KEEP" | while read -r old; do
  remove "$old"
done

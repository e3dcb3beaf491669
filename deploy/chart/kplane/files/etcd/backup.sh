# Saves etcd to $BACKUPS/<UTC time>.db, and keeps the newest $KEEP. ETCDCTL_* say which etcd.
set -eu
umask 077

name=$(date -u +%Y%m%dT%H%M%SZ).db
partial=$BACKUPS/.$name.partial
# etcdctl writes to a file of the same name with .part at its end.
trap 'rm -f "$partial" "$partial.part"' EXIT
# What backups left that were killed.
find "$BACKUPS" -maxdepth 1 -name '.*.partial*' -mmin +120 -delete

etcdctl snapshot save --dial-timeout=30s --command-timeout=30m "$partial"
etcdutl snapshot status --write-out=table "$partial"
mv "$partial" "$BACKUPS/$name"
echo "saved $name"

find "$BACKUPS" -maxdepth 1 -name '[0-9]*T[0-9]*Z.db' | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do
  rm -f "$old"
  echo "removed $(basename "$old")"
done

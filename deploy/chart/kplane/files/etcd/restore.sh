# Makes $VOLUME/data of one member ($MEMBER, at $PEER_URL) from $BACKUPS/$SNAPSHOT, and keeps what was there.
set -eu
umask 077

snapshot=$BACKUPS/$SNAPSHOT
data=$VOLUME/data
restored=$VOLUME/restored

if [ ! -f "$snapshot" ]; then
  echo "There is no snapshot $SNAPSHOT. There are:" >&2
  find "$BACKUPS" -maxdepth 1 -name '*.db' | sort >&2
  exit 1
fi
# etcd holds this lock as long as it runs.
if [ -f "$data/member/snap/db" ] && ! flock --timeout 120 "$data/member/snap/db" true; then
  echo "etcd still runs on this volume." >&2
  exit 1
fi

rm -rf "$restored"
# Revisions that are higher than any that was seen: a watch from before is told that it is too old, and misses nothing.
etcdutl snapshot restore "$snapshot" --data-dir="$restored" --name="$MEMBER" --initial-advertise-peer-urls="$PEER_URL" \
  --initial-cluster="$CLUSTER" --initial-cluster-token="$CLUSTER_TOKEN" --bump-revision="$BUMP_REVISION" --mark-compacted
if [ -d "$data" ]; then
  aside=$VOLUME/replaced-$(date -u +%Y%m%dT%H%M%SZ)
  mv -T "$data" "$aside"
  echo "moved what was there to $aside"
fi
# Fails where etcd was started meanwhile and made a directory of its own.
mv -T "$restored" "$data"
echo "restored $SNAPSHOT"

# Makes $VOLUME/data of one member ($MEMBER, at $PEER_URL) from $BACKUPS/$SNAPSHOT, and keeps what was there. It is done once for each
# $DIGEST. The members of one restore have a $CLUSTER_TOKEN of their own, which shuts out those that were not restored.
set -eu
umask 077
# A shell that is the first process of its container ends by no signal that it does not name. Nothing is moved after it.
trap 'exit 143' TERM

snapshot=$BACKUPS/$SNAPSHOT
data=$VOLUME/data
database=$data/member/snap/db
restored=$VOLUME/restored
marker=$VOLUME/.restored-$DIGEST

# The revision that a database has come to.
revision() {
  etcdutl snapshot status --write-out=json "$1" | sed 's/.*"revision":\([0-9]*\).*/\1/'
}

# One after the other: the pod of a Job that was replaced may not have ended yet.
exec 9> "$VOLUME/.restore.lock"
flock 9

# `helm rollback` to the release that restored brings its Jobs again.
if [ -e "$marker" ]; then
  echo "restored already; raise etcd.restore.bumpRevision to do it again"
  exit 0
fi
if [ ! -f "$snapshot" ]; then
  echo "There is no snapshot $SNAPSHOT. There are:" >&2
  find "$BACKUPS" -maxdepth 1 -name '*.db' | sort >&2
  exit 1
fi
if [ -f "$database" ]; then
  # etcd holds this lock as long as it runs.
  if ! flock --timeout 120 "$database" true; then
    echo "etcd still runs on this volume." >&2
    exit 1
  fi
  # Revisions that are higher than any that was seen: a watch from before is told that it is too old, and misses nothing. What
  # cannot be read any more has no revision, and is no reason to keep it.
  current=$(revision "$database")
  saved=$(revision "$snapshot")
  if [ -n "$current" ] && [ -n "$saved" ] && [ $((saved + BUMP_REVISION)) -lt "$current" ]; then
    echo "etcd.restore.bumpRevision is $BUMP_REVISION, and this etcd has gone on by $((current - saved)) revisions since" \
      "$SNAPSHOT was saved: set it to a larger number than that." >&2
    exit 1
  fi
fi

rm -rf "$restored"
etcdutl snapshot restore "$snapshot" --data-dir="$restored" --name="$MEMBER" --initial-advertise-peer-urls="$PEER_URL" \
  --initial-cluster="$CLUSTER" --initial-cluster-token="$CLUSTER_TOKEN" --bump-revision="$BUMP_REVISION" --mark-compacted
if [ -d "$data" ]; then
  # It took a while, in which etcd may have been started.
  if [ -f "$database" ] && ! flock --nonblock "$database" true; then
    echo "etcd was started on this volume during the restore, and keeps what it has. Stop it; the restore is tried again." >&2
    exit 1
  fi
  aside=$VOLUME/replaced-$(date -u +%Y%m%dT%H%M%SZ)
  # Another restore in the same second.
  while [ -e "$aside" ]; do
    sleep 1
    aside=$VOLUME/replaced-$(date -u +%Y%m%dT%H%M%SZ)
  done
  mv -T "$data" "$aside"
  echo "moved what was there to $aside"
fi
# Fails where etcd was started meanwhile and made a directory of its own.
mv -T "$restored" "$data"
touch "$marker"
echo "restored $SNAPSHOT"

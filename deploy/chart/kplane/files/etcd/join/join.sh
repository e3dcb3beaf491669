# Writes $CONFIG for the member $MEMBER of an etcd that has grown. Without data it first becomes a learner among the members that
# are there: the operator gives it its vote. It never begins an etcd of its own. ETCDCTL_* are root's; $SETTINGS is the rest of $CONFIG.
set -eu
umask 077
trap 'exit 143' TERM

data=$VOLUME/data

# $1: the members that it begins with. etcd reads them at its first start only.
write() {
  sed "s|\$(MEMBER)|$MEMBER|g" "$SETTINGS" > "$CONFIG.new"
  printf 'initial-cluster-state: existing\ninitial-cluster: %s\n' "$1" >> "$CONFIG.new"
  mv "$CONFIG.new" "$CONFIG"
}

# The members, from the first one that knows what the majority says: "ID, status, name, peer URLs, client URLs, is learner".
members() {
  for endpoint in $ENDPOINTS; do
    if etcdctl --endpoints="$endpoint" --dial-timeout=3s --command-timeout=5s member list 2> /tmp/error; then
      asked=$endpoint
      return
    fi
  done
  echo "no member of etcd answers: $(tail -n 1 /tmp/error)" >&2
  return 1
}

change() {
  etcdctl --endpoints="$asked" --dial-timeout=3s --command-timeout=10s member "$@" > /dev/null
}

if [ -n "$(find "$data/member/wal" -name '*.wal' 2> /dev/null)" ]; then
  # With itself alone it would not start, should the data be gone until etcd looks.
  write "$MEMBER=$PEER_URL"
  exit 0
fi
while :; do
  if members > /tmp/members; then
    own=$(grep -F ", $PEER_URL, " /tmp/members || true)
    case $own in
      *", unstarted, "*)
        rm -rf "$data"
        write "$(awk -F ', ' -v url="$PEER_URL" -v name="$MEMBER" '{print ($4 == url ? name : $3) "=" $4}' /tmp/members | paste -sd , -)"
        echo "joins as ${own%%,*}"
        exit 0
        ;;
      "")
        # etcd takes one learner at a time.
        if change add "$MEMBER" --learner --peer-urls="$PEER_URL"; then continue; fi
        ;;
      *)
        echo "member ${own%%,*} has lost its data: it is removed, and joins anew"
        if change remove "${own%%,*}"; then continue; fi
        ;;
    esac
  fi
  sleep 2
done

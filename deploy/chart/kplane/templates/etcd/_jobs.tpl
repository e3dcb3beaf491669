{{/* Whether backups have the keys of control planes in them, and so read Secrets. */}}
{{- define "kplane.backsUpKeys" -}}
{{ if .Values.etcd.backup.recipients }}true{{ end }}
{{- end -}}

{{/* Whether the operator keeps ControlPlaneSnapshots on the volume of backups: without a bucket, if the pods of all nodes can use it. */}}
{{- define "kplane.snapshotsOnVolume" -}}
{{- $etcd := .Values.etcd -}}
{{- if and $etcd.backup.recipients (not $etcd.backup.bucket.url) $etcd.enabled $etcd.backup.enabled (eq $etcd.backup.accessMode "ReadWriteMany") -}}true{{- end -}}
{{- end -}}

{{/* The job that makes a backup: (list $ account advice). With advice, said after a failure, it soon gives up: Helm waits for it. */}}
{{- define "kplane.backupJob" -}}
{{- $root := index . 0 -}}
{{- $advice := index . 2 -}}
{{- $values := $root.Values -}}
{{- $backup := $values.etcd.backup -}}
{{- $name := include "kplane.etcd" $root -}}
# etcd may be on its way up.
backoffLimit: {{ ternary 1 8 (ne $advice "") }}
activeDeadlineSeconds: 3600
ttlSecondsAfterFinished: 86400
template:
  metadata:
    labels:
      {{- include "kplane.podLabels" (list $root "etcd-backup") | nindent 6 }}
  spec:
    {{- include "kplane.etcdJobPod" $root | nindent 4 }}
    {{- if include "kplane.backsUpKeys" $root }}
    serviceAccountName: {{ index . 1 | quote }}
    {{- end }}
    automountServiceAccountToken: {{ ternary true false (ne (include "kplane.backsUpKeys" $root) "") }}
    # With Never the pod stays, and Helm shows its log.
    restartPolicy: {{ ternary "Never" "OnFailure" (ne $advice "") | quote }}
    containers:
      - name: backup
        image: {{ include "kplane.image" (list $root "operator") | quote }}
        imagePullPolicy: {{ $values.operator.image.pullPolicy | quote }}
        command: [python, -P, -m, kplane.controlplane_operator.backup, save]
        args:
          - --volume=/backup
          - "--etcd=https://{{ $name }}.{{ $root.Release.Namespace }}.svc:2379"
          - --credentials=/etc/etcd
          - "--namespace={{ $root.Release.Namespace }}"
          - "--etcd-secret={{ $name }}-credentials"
          - "--keep={{ int64 $backup.keep }}"
          {{- range $backup.recipients }}
          - {{ printf "--recipient=%v" . | quote }}
          {{- end }}
          {{- with $backup.bucket }}
          {{- if .url }}
          - {{ printf "--bucket=%v" .url | quote }}
          - --bucket-credentials=/etc/bucket
          {{- end }}
          {{- with .endpoint }}
          - {{ printf "--bucket-endpoint=%v" . | quote }}
          {{- end }}
          {{- with .region }}
          - {{ printf "--bucket-region=%v" . | quote }}
          {{- end }}
          {{- end }}
          {{- with $advice }}
          - {{ printf "--advice=%s" . | quote }}
          {{- end }}
        {{- with $backup.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          {{- include "kplane.containerSecurity" $root | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - {name: backup, mountPath: /backup}
          - {name: credentials, mountPath: /etc/etcd, readOnly: true}
          {{- if $backup.bucket.url }}
          - {name: bucket, mountPath: /etc/bucket, readOnly: true}
          {{- end }}
    volumes:
      - name: backup
        persistentVolumeClaim:
          claimName: "{{ $name }}-backup"
      - name: credentials
        secret:
          secretName: "{{ $name }}-credentials"
          defaultMode: 0440
          # Not the key of the authority.
          items:
            - {key: ca.crt, path: ca.crt}
            - {key: client.crt, path: client.crt}
            - {key: client.key, path: client.key}
      {{- if $backup.bucket.url }}
      - name: bucket
        secret:
          secretName: {{ $backup.bucket.credentialsSecret | quote }}
          defaultMode: 0440
      {{- end }}
{{- end -}}

{{/* What a backup with keys may read: (list $ name annotations). */}}
{{- define "kplane.backupRights" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $annotations := index . 2 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "kplane.labels" (list $root "etcd-backup") | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name | quote }}
  labels:
    {{- include "kplane.labels" (list $root "etcd-backup") | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  - apiGroups: [controlplane.kplane.dev]
    resources: [controlplanes, controlplaneclasses, controlplaneendpoints, controlplaneregistrations, controlplanesnapshots]
    verbs: [list]
  - apiGroups: [""]
    resources: [namespaces]
    # what they record of retained data
    verbs: [list]
  - apiGroups: [""]
    resources: [secrets]
    # the CAs and ServiceAccount keys, one Secret in each namespace of a control plane
    resourceNames: [control-plane-authorities]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name | quote }}
  labels:
    {{- include "kplane.labels" (list $root "etcd-backup") | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ $name | quote }}
    namespace: {{ $root.Release.Namespace | quote }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "kplane.labels" (list $root "etcd-backup") | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    # the CA of the shared etcd
    resourceNames: ["{{ include "kplane.etcd" $root }}-credentials"]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "kplane.labels" (list $root "etcd-backup") | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ $name | quote }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- end -}}

{{/* The job that restores a member: (list $ 0). All of them take the same snapshot and raise revisions by the same number. */}}
{{- define "kplane.restoreJob" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $restore := $values.etcd.restore -}}
{{- $name := include "kplane.etcd" $root -}}
{{- $member := printf "%s-%v" $name (index . 1) -}}
{{- /* One restore, and no other: neither its image nor where it runs is part of it. */ -}}
{{- $digest := printf "%s %d" $restore.snapshot (int64 $restore.bumpRevision) | sha256sum | trunc 10 -}}
backoffLimit: 4
template:
  metadata:
    labels:
      {{- include "kplane.podLabels" (list $root "etcd-restore") | nindent 6 }}
  spec:
    {{- include "kplane.etcdJobPod" $root | nindent 4 }}
    automountServiceAccountToken: false
    restartPolicy: Never
    containers:
      - name: restore
        image: {{ include "kplane.image" (list $root "operator") | quote }}
        imagePullPolicy: {{ $values.operator.image.pullPolicy | quote }}
        command: [/bin/sh, /scripts/restore.sh]
        env:
          - {name: BACKUPS, value: /backup}
          - {name: SNAPSHOT, value: {{ $restore.snapshot | quote }}}
          - {name: VOLUME, value: /var/lib/etcd}
          - {name: MEMBER, value: {{ $member | quote }}}
          - {name: PEER_URL, value: {{ include "kplane.etcdMember" . | quote }}}
          - {name: CLUSTER, value: {{ include "kplane.etcdCluster" $root | quote }}}
          # Members that were not restored have another one, and the restored ones do not talk to them. etcd itself reads the
          # token from its data, not from its arguments.
          - {name: CLUSTER_TOKEN, value: "{{ $name }}-{{ $digest }}"}
          - {name: BUMP_REVISION, value: {{ int64 $restore.bumpRevision | quote }}}
          - {name: DIGEST, value: {{ $digest | quote }}}
        {{- with $values.etcd.backup.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          {{- include "kplane.containerSecurity" $root | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - {name: scripts, mountPath: /scripts, readOnly: true}
          - {name: backup, mountPath: /backup, readOnly: true}
          - {name: data, mountPath: /var/lib/etcd}
          - {name: tmp, mountPath: /tmp}
    volumes:
      - name: scripts
        configMap:
          name: "{{ $name }}-scripts"
      - name: backup
        persistentVolumeClaim:
          claimName: "{{ $name }}-backup"
      - name: data
        persistentVolumeClaim:
          claimName: "data-{{ $member }}"
      - name: tmp
        emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/* What pods of backup and restore have in common. */}}
{{- define "kplane.etcdJobPod" -}}
enableServiceLinks: false
securityContext:
  {{- include "kplane.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.etcd.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.etcd.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The job that saves a snapshot; the CronJob and the Job at installation and upgrade have it. */}}
{{- define "kplane.backupJob" -}}
{{- $name := include "kplane.etcd" . -}}
# etcd may be on its way up.
backoffLimit: 8
activeDeadlineSeconds: 3600
ttlSecondsAfterFinished: 86400
template:
  metadata:
    labels:
      {{- include "kplane.podLabels" (list . "etcd-backup") | nindent 6 }}
  spec:
    {{- include "kplane.etcdJobPod" . | nindent 4 }}
    restartPolicy: OnFailure
    containers:
      - name: backup
        image: {{ include "kplane.image" (list . "operator") }}
        imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
        command: [/bin/sh, /scripts/backup.sh]
        env:
          - {name: BACKUPS, value: /backup}
          - {name: KEEP, value: {{ .Values.etcd.backup.keep | quote }}}
          - {name: ETCDCTL_ENDPOINTS, value: "https://{{ $name }}.{{ .Release.Namespace }}.svc:2379"}
          - {name: ETCDCTL_CACERT, value: /etc/etcd/ca.crt}
          - {name: ETCDCTL_CERT, value: /etc/etcd/client.crt}
          - {name: ETCDCTL_KEY, value: /etc/etcd/client.key}
        {{- with .Values.etcd.backup.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          {{- include "kplane.containerSecurity" . | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - {name: scripts, mountPath: /scripts, readOnly: true}
          - {name: backup, mountPath: /backup}
          - {name: credentials, mountPath: /etc/etcd, readOnly: true}
    volumes:
      - name: scripts
        configMap:
          name: {{ $name }}-scripts
      - name: backup
        persistentVolumeClaim:
          claimName: {{ $name }}-backup
      - name: credentials
        secret:
          secretName: {{ $name }}-credentials
          defaultMode: 0440
          # Not the key of the authority.
          items:
            - {key: ca.crt, path: ca.crt}
            - {key: client.crt, path: client.crt}
            - {key: client.key, path: client.key}
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
    restartPolicy: Never
    containers:
      - name: restore
        image: {{ include "kplane.image" (list $root "operator") }}
        imagePullPolicy: {{ $values.operator.image.pullPolicy }}
        command: [/bin/sh, /scripts/restore.sh]
        env:
          - {name: BACKUPS, value: /backup}
          - {name: SNAPSHOT, value: {{ $restore.snapshot | quote }}}
          - {name: VOLUME, value: /var/lib/etcd}
          - {name: MEMBER, value: {{ $member }}}
          - {name: PEER_URL, value: {{ include "kplane.etcdMember" . | quote }}}
          - {name: CLUSTER, value: {{ include "kplane.etcdCluster" $root | quote }}}
          # Members that were not restored have another one, and the restored ones do not talk to them. etcd itself reads the
          # token from its data, not from its arguments.
          - {name: CLUSTER_TOKEN, value: {{ $name }}-{{ $digest }}}
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
          name: {{ $name }}-scripts
      - name: backup
        persistentVolumeClaim:
          claimName: {{ $name }}-backup
      - name: data
        persistentVolumeClaim:
          claimName: data-{{ $member }}
      - name: tmp
        emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/* What pods of backup and restore have in common. */}}
{{- define "kplane.etcdJobPod" -}}
automountServiceAccountToken: false
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

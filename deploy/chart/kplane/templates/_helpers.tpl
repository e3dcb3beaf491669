{{- define "kplane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Beginning of all names. The longest endings are -etcd-restore-2-0123456789 and -etcd-backup-0123456789, and names of pods have to fit into 63 letters.
     Names of Services begin with a letter and have no dots; release names may be otherwise. */}}
{{- define "kplane.fullname" -}}
{{- $name := include "kplane.name" . -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- $beginning := .Values.fullnameOverride | default (ternary $release (printf "%s-%s" $release $name) (contains $name $release)) -}}
{{- if regexMatch "^[0-9]" $beginning -}}
{{- $beginning = printf "%s-%s" .Chart.Name $beginning -}}
{{- end -}}
{{- $beginning | trunc 32 | trimSuffix "-" -}}
{{- end -}}

{{- define "kplane.etcd" -}}
{{ include "kplane.fullname" . }}-etcd
{{- end -}}

{{/* Labels that select the pods of a component: (list $ "operator"). */}}
{{- define "kplane.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "kplane.name" $root | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
{{- end -}}

{{/* Labels of a pod that is not to be replaced by each version of the chart: (list $ "etcd"). */}}
{{- define "kplane.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "kplane.selector" . }}
app.kubernetes.io/part-of: kplane
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
{{- end -}}

{{/* All labels of an object of a component: (list $ "operator"). */}}
{{- define "kplane.labels" -}}
{{- $root := index . 0 -}}
{{ include "kplane.podLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* A reference to an image, in global.imageRegistry where that is set: (list $ "registry.k8s.io/etcd:v3.6.16"). */}}
{{- define "kplane.reference" -}}
{{- $reference := index . 1 -}}
{{- with (index . 0).Values.global.imageRegistry -}}
{{ . }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $reference "" }}
{{- else -}}
{{ $reference }}
{{- end -}}
{{- end -}}

{{/* The image of a component of kplane: (list $ "operator"). */}}
{{- define "kplane.image" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $image := (index $root.Values $component).image -}}
{{- if not (or $image.repository $root.Values.global.imageRegistry) -}}
{{- fail (printf "%s.image.repository is empty, because kplane has no released images yet: run `make install-kind` in a checkout to build them and install kplane on kind, or run `make images`, push kplane-operator, kplane-mcm and kplane-gateway to a registry of yours, and set operator.image.repository, mcm.image.repository and gateway.image.repository." $component) -}}
{{- end -}}
{{- $repository := $image.repository | default (printf "kplane-%s" $component) -}}
{{ include "kplane.reference" (list $root $repository) }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* An amount as people write it: numbers of a file of values are floats, which would get exponents. */}}
{{- define "kplane.amount" -}}
{{ if and (kindIs "float64" .) (eq . (float64 (int64 .))) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end -}}

{{/* The number that an amount stands for: cores, or bytes. */}}
{{- define "kplane.quantity" -}}
{{- $text := include "kplane.amount" . -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $factors := dict "" 1 "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{ mulf (float64 (trimSuffix $unit $text)) (index $factors $unit) }}
{{- end -}}

{{/* Amounts of resources as the operator's flags have them: (dict "cpu" "50m" "memory" "128Mi"). */}}
{{- define "kplane.amounts" -}}
{{- $amounts := list -}}
{{- range $name, $amount := . -}}
{{- $amounts = append $amounts (printf "%s=%s" $name (include "kplane.amount" $amount)) -}}
{{- end -}}
{{ join "," $amounts }}
{{- end -}}

{{- define "kplane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kplane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods may run, from the values of a component. */}}
{{- define "kplane.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* "1", and "0" while a snapshot is restored, when nothing may touch etcd. */}}
{{- define "kplane.etcdMember" -}}
{{- $root := index . 0 -}}
{{- $etcd := include "kplane.etcd" $root -}}
https://{{ $etcd }}-{{ index . 1 }}.{{ $etcd }}-peers.{{ $root.Release.Namespace }}.svc:2380
{{- end -}}

{{- define "kplane.etcdCluster" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{ if $i }},{{ end }}{{ include "kplane.etcd" $root }}-{{ $i }}={{ include "kplane.etcdMember" (list $root $i) }}
{{- end -}}
{{- end -}}

{{/* So many members the etcd began with: the first volume says it, and nobody can change it. */}}
{{- define "kplane.etcdFirst" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (printf "data-%s-0" (include "kplane.etcd" .)) -}}
{{- dig "metadata" "annotations" "controlplane.kplane.dev/etcd-members" (toString .Values.etcd.replicas) ($claim | default dict) -}}
{{- end -}}

{{/* "true" where members have joined, or are to join, an etcd that began with fewer. */}}
{{- define "kplane.etcdGrown" -}}
{{- if lt (int (include "kplane.etcdFirst" .)) (int .Values.etcd.replicas) }}true{{ end -}}
{{- end -}}

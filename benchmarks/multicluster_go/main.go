// Runs a manager of sigs.k8s.io/multicluster-runtime, controlled like benchmarks/provider_worker.py.
//
// Each cluster has its own connection, as in a real fleet. The clients have no rate limit.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mchandler "sigs.k8s.io/multicluster-runtime/pkg/handler"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded"
	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded/peers"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/providers/clusters"
)

const (
	flooded   = multicluster.ClusterName("cluster-0")
	gated     = multicluster.ClusterName("gated")
	namespace = "benchmark"
)

type options struct {
	Kubeconfig string  `json:"kubeconfig"`
	Kinds      int     `json:"kinds"`
	Identity   *string `json:"identity"`
	Hub        bool    `json:"hub"`
}

type question struct {
	Do       string   `json:"do"`
	Clusters int      `json:"clusters"`
	Silent   []string `json:"silent"`
	Gated    string   `json:"gated"`
	Requests int      `json:"requests"`
}

// meter counts reconciles. Flood requests take a millisecond each, and are not counted.
type meter struct {
	manager mcmanager.Manager

	lock         sync.Mutex
	reconciles   int
	last         float64
	milliseconds []float64
	moments      []float64
	failures     int
	flooded      bool
}

func (m *meter) Reconcile(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
	if strings.HasPrefix(request.Name, "flood-") {
		time.Sleep(time.Millisecond)
		return ctrl.Result{}, nil
	}
	if request.ClusterName == gated {
		if err := m.read(ctx, request); err != nil {
			return ctrl.Result{}, err
		}
	}
	m.lock.Lock()
	m.reconciles++
	m.last = float64(monotonic()) / 1e9
	m.lock.Unlock()
	if !strings.HasPrefix(request.Name, "churn-") {
		return ctrl.Result{}, nil
	}
	found, err := m.manager.GetCluster(ctx, request.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	var object corev1.ConfigMap
	if err := found.GetCache().Get(ctx, request.NamespacedName, &object); err != nil {
		return ctrl.Result{}, err
	}
	sent, err := strconv.ParseInt(object.Annotations["benchmark/sent"], 10, 64)
	m.lock.Lock()
	if err == nil && (request.ClusterName != flooded || !m.flooded) {
		m.milliseconds = append(m.milliseconds, float64(monotonic()-sent)/1e6)
	}
	m.lock.Unlock()
	return ctrl.Result{}, err
}

// read gets the object from the API server of the gated cluster, and records the time of the response.
func (m *meter) read(ctx context.Context, request mcreconcile.Request) error {
	found, err := m.manager.GetCluster(ctx, request.ClusterName)
	if err == nil {
		var object corev1.ConfigMap
		err = found.GetAPIReader().Get(ctx, request.NamespacedName, &object)
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if err != nil {
		m.failures++
		return err
	}
	m.moments = append(m.moments, float64(monotonic())/1e9)
	return nil
}

// monotonic returns the clock of Python's time.monotonic_ns.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

func memory() int {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(fields[1])
			return kib
		}
	}
	panic("/proc/self/status has no VmRSS")
}

// alone returns a configuration whose clients share no connection with other clients.
func alone(config *rest.Config) *rest.Config {
	made := rest.CopyConfig(config)
	made.QPS = -1
	made.Dial = (&net.Dialer{}).DialContext
	return made
}

// flood is a source of requests that the program creates.
type flood struct {
	queue chan workqueue.TypedRateLimitingInterface[mcreconcile.Request]
}

func (f *flood) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[mcreconcile.Request]) error {
	f.queue <- queue
	return nil
}

func run(given options) error {
	config, err := clientcmd.BuildConfigFromFlags("", given.Kubeconfig)
	if err != nil {
		return err
	}
	var registry peers.Registry
	var more []mcmanager.Option
	if given.Identity != nil {
		leases, err := client.New(alone(config), client.Options{Scheme: scheme.Scheme})
		if err != nil {
			return err
		}
		registry = peers.NewLeaseRegistry(leases, "kube-system", "mcr-peer", *given.Identity, 1, logr.Discard())
		more = append(more, mcmanager.WithCoordinator(
			sharded.New(leases, logr.Discard(), sharded.WithPeerRegistry(registry)),
		))
	}
	provider := clusters.New()
	managed, err := mcmanager.New(alone(config), provider, manager.Options{
		Scheme:  scheme.Scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	}, more...)
	if err != nil {
		return err
	}
	counted, flooding := &meter{manager: managed}, &flood{queue: make(chan workqueue.TypedRateLimitingInterface[mcreconcile.Request], 1)}
	limits := controller.TypedOptions[mcreconcile.Request]{MaxConcurrentReconciles: 8}
	for number, kind := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}, &corev1.ServiceAccount{}}[:given.Kinds] {
		built := mcbuilder.ControllerManagedBy(managed).Named(fmt.Sprintf("kind-%d", number)).For(kind).WithOptions(limits)
		if number == 0 {
			built = built.WatchesRawSource(source.TypedSource[mcreconcile.Request](flooding))
		}
		if err := built.Complete(counted); err != nil {
			return err
		}
	}
	if given.Hub {
		if err := watchHub(managed, provider, counted, limits); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- managed.Start(ctx) }()
	answerAll(ctx, config, provider, registry, counted, flooding)
	stop()
	return <-ended
}

// watchHub maps an object of the hub to a request for each member.
func watchHub(
	managed mcmanager.Manager, provider *clusters.Provider, counted *meter,
	limits controller.TypedOptions[mcreconcile.Request],
) error {
	members := func(_ context.Context, found client.Object) []mcreconcile.Request {
		var made []mcreconcile.Request
		if strings.HasPrefix(found.GetName(), "hub-") {
			name := types.NamespacedName{Namespace: found.GetNamespace(), Name: found.GetName()}
			for _, each := range provider.ClusterNames() {
				request := reconcile.Request{NamespacedName: name}
				made = append(made, mcreconcile.Request{Request: request, ClusterName: each})
			}
		}
		return made
	}
	mapped := func(multicluster.ClusterName, cluster.Cluster) mchandler.EventHandler {
		return mchandler.TypedEnqueueRequestsFromMapFuncWithClusterPreservation[client.Object, mcreconcile.Request](
			handler.TypedMapFunc[client.Object, mcreconcile.Request](members))
	}
	return mcbuilder.ControllerManagedBy(managed).Named("hub").WithOptions(limits).
		Watches(&corev1.ConfigMap{}, mapped,
			mcbuilder.WithEngageWithLocalCluster(true), mcbuilder.WithEngageWithProviderClusters(false)).
		Complete(counted)
}

func answerAll(
	ctx context.Context, config *rest.Config, provider *clusters.Provider, registry peers.Registry, counted *meter,
	flooding *flood,
) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		answer := map[string]any{}
		switch asked.Do {
		case "engage":
			// In the background, because the provider adds clusters one after the other.
			go addAll(ctx, config, provider, asked)
		case "flood":
			queue := <-flooding.queue
			counted.lock.Lock()
			counted.flooded = true
			counted.lock.Unlock()
			for number := range asked.Requests {
				name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("flood-%d", number)}
				queue.Add(mcreconcile.Request{Request: reconcile.Request{NamespacedName: name}, ClusterName: flooded})
			}
		case "enqueue":
			queue := <-flooding.queue
			for number := range asked.Requests {
				name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("outage-%d", number)}
				queue.Add(mcreconcile.Request{Request: reconcile.Request{NamespacedName: name}, ClusterName: gated})
			}
		case "gated":
			counted.lock.Lock()
			answer["moments"], counted.moments = append([]float64{}, counted.moments...), nil
			answer["failures"], counted.failures = counted.failures, 0
			counted.lock.Unlock()
		case "shards":
			// The runtime does not expose its shards. The registry of each peer must list both peers instead.
			answer["owned"], answer["all"] = 0, 2
			if registry != nil && len(registry.Snapshot()) == 2 {
				answer["owned"] = 1
			}
		case "memory":
			answer["rss_kib"] = memory()
		case "latencies":
			counted.lock.Lock()
			answer["milliseconds"], counted.milliseconds = append([]float64{}, counted.milliseconds...), nil
			counted.lock.Unlock()
		default:
			counted.lock.Lock()
			answer["reconciles"], answer["last"] = counted.reconciles, counted.last
			counted.lock.Unlock()
		}
		encoded, err := json.Marshal(answer)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(encoded))
	}
}

func addAll(ctx context.Context, config *rest.Config, provider *clusters.Provider, asked question) {
	add := func(name string, config *rest.Config) {
		made, err := cluster.New(config, func(options *cluster.Options) { options.Scheme = scheme.Scheme })
		if err == nil {
			err = provider.Add(ctx, multicluster.ClusterName(name), made)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, name, err)
		}
	}
	for number, server := range asked.Silent {
		add(fmt.Sprintf("silent-%d", number), alone(&rest.Config{Host: server}))
	}
	for number := range asked.Clusters {
		add(fmt.Sprintf("cluster-%d", number), alone(config))
	}
	if asked.Gated != "" {
		made := alone(config)
		made.Host = asked.Gated
		add(string(gated), made)
	}
}

func main() {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var given options
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		panic(err)
	}
	if err := run(given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

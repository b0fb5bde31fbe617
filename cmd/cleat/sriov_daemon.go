package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/ovsdb"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const sriovDaemonState = "/var/lib/cleat/sriov-daemon"

// sriovDaemonServer is cleat sriov daemon.
type sriovDaemonServer struct {
	server.Server
	config        daemon.Config
	mode          string
	nodeState     string
	cluster       source.ClusterConfig
	writeStatus   bool
	controlSocket string
	podResources  string
	pod           string
	own           podresources.Pod // parsed from pod
	machine       host.Config      // zero except for Sysfs: this machine
	dryRun        bool
	output        cli.Format

	renewer *control.Renewer
	daemon  *daemon.Daemon
}

// newSriovDaemonCommand uses this machine if machine is nil.
func newSriovDaemonCommand(machine *host.Config) *cobra.Command {
	s := &sriovDaemonServer{output: cli.FormatTable}
	if machine != nil {
		s.machine = *machine
	}
	return serving(&cobra.Command{
		Use:   "daemon",
		Short: "Run the SR-IOV config daemon",
		Long: `Controls when the device plugin of this node (cleat sriov plugin --controlled-mode)
offers its devices: only while the functions are in the state that the node's
SriovNetworkNodeState specifies. Devices are withdrawn before functions change.

  --mode apply    configures functions: their number, drivers, MAC addresses and
                  GUIDs, MTU, trust and spoof check, vDPA. What ended pods left on
                  functions is reset, unless with --keep-residue. Functions in use by
                  pods are not changed, unless with --force: the plan waits until the
                  pods are gone, and the node offers no devices meanwhile.
  --mode follow   leaves the configuration to the daemon of the SR-IOV network
                  operator. Devices are withdrawn on any change of the node state,
                  and offered again when its status is Succeeded and matches the
                  functions of the node.

The node state is a file (--node-state, YAML or JSON, watched), or an object of the
API server (in-cluster configuration or --kubeconfig). Progress is recorded in
--state-dir: a restarted daemon continues, and offers configured functions at once.

For a plugin without cleat's extensions of the contract, closing the stream
withdraws the devices, which the kubelet then confirms. A plugin without a control
socket cannot withdraw: the daemon logs this and continues, like the operator's
daemon. Without a kubelet the functions in use by pods are unknown, and no existing
function is changed. On a machine without a kubelet set an empty
--pod-resources-socket.

--dry-run prints the plan without changes.`,
		Example: `  cleat sriov daemon --mode follow
  cleat sriov daemon --mode apply --node-state /etc/cleat/node-state.yaml
  cleat sriov daemon --mode apply --node-state node-state.yaml --dry-run`,
		Args: noArgs,
	}, s)
}

func (s *sriovDaemonServer) addFlags(fs *pflag.FlagSet) {
	hostname, _ := os.Hostname() // if it is empty, --node is required
	c, r := &s.config, &s.config.Rules
	fs.StringVar(&s.mode, "mode", string(daemon.Follow), "configuration of functions: apply (by this daemon) or follow (by the operator's daemon)")
	cli.Enumerate(fs, "mode", string(daemon.Apply), string(daemon.Follow))
	fs.StringVar(&s.nodeState, "node-state", "", "file with the SriovNetworkNodeState; empty: use the object of the API server")
	fs.StringVar(&s.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: in-cluster configuration")
	fs.StringVar(&s.cluster.Namespace, "namespace", "", "namespace of the object; by default that of the pod, else "+source.DefaultNamespace)
	fs.StringVar(&r.Node, "node", strings.ToLower(hostname), "name of this node and of the object")
	fs.BoolVar(&s.writeStatus, "write-status", true, "with --mode apply, report functions and progress in the status of the object")
	fs.StringVar(&s.controlSocket, "control-socket", sriovControlSocket, "control socket of the plugin, a UNIX socket")
	fs.StringVar(&c.GUIDFile, "guid-file", sriovGUIDFile, "the operator's file of static InfiniBand GUIDs; optional")
	fs.StringVar(&c.PluginConfig, "plugin-config", "", "config.json of the plugin: devices are offered only while the plugin has loaded the same content; empty: not checked")
	fs.StringVar(&s.podResources, "pod-resources-socket", podresources.DefaultSocket, "PodResources socket of the kubelet; empty: no kubelet runs, and no function is in use by pods")
	fs.StringVar(&s.pod, "pod", "", "pod of this process, NAMESPACE/NAME: the kubelet's list of pods is incomplete after a restart, and ignored until it contains this pod")
	fs.StringVar(&s.machine.Sysfs, "sysfs-root", "/sys", "mount point of sysfs")
	fs.DurationVar(&r.Lease, "lease", 30*time.Second, "lease: the plugin withdraws its devices after this time without a heartbeat, even with an open stream; 0: never")
	fs.DurationVar(&r.Hold, "hold", 0, "time for which devices stay offered when this daemon is lost, for example during an upgrade; 0: withdraw at once")
	fs.DurationVar(&r.Resync, "resync", 5*time.Minute, "interval of reconciliations without an observed change")
	fs.DurationVar(&r.Settle, "settle", 0, "delay between the withdrawal and the first step: the scheduler can bind pods for about 10 s more, which then fail to start")
	fs.DurationVar(&r.Unacknowledged, "unacknowledged-wait", 10*time.Second, "time allowed for the withdrawal of a plugin that cannot acknowledge")
	fs.BoolVar(&r.Force, "force", false, "change functions even if they are in use by pods, or if this is unknown")
	fs.BoolVar(&r.KeepResidue, "keep-residue", false, "do not reset VLAN, MAC address, trust, ... that the networks of ended pods left on functions: for CNI plugins that keep state")
	fs.StringSliceVar(&r.Accept, "accept", nil, "offer functions although the node state asks for something that the node does not have: "+strings.Join(plan.Kinds(), ", ")+"; can be repeated")
	fs.StringVar(&s.machine.OVS, "ovs-socket", ovsdb.DefaultSocket, "socket of the database of Open vSwitch, in which bridges of the node state are created; optional")
	fs.BoolVar(&s.dryRun, "dry-run", false, "print the plan and exit")
	fs.VarP(&s.output, "output", "o", "with --dry-run: table, json or yaml")
	s.AddFlags(fs, server.Defaults{StateDir: sriovDaemonState, Env: map[string]string{"node": "NODE_NAME"}}) // as in the operator's daemon
}

// Complete derives settings and refuses those that cannot work.
func (s *sriovDaemonServer) Complete() (err error) {
	r := &s.config.Rules
	if r.Mode, err = daemon.ParseMode(s.mode); err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	if s.nodeState != "" && s.cluster.Kubeconfig != "" {
		return fmt.Errorf("--node-state %q and --kubeconfig %q are mutually exclusive: the node state is a file or an object", s.nodeState, s.cluster.Kubeconfig)
	}
	if r.Node == "" && s.nodeState == "" {
		return fmt.Errorf("this machine has no host name: set --node to the name of its object")
	}
	s.machine.Sysfs = cmp.Or(s.machine.Sysfs, "/sys")
	for flag, path := range map[string]*string{
		"sysfs-root": &s.machine.Sysfs, "state-dir": &s.StateDir, "node-state": &s.nodeState,
		"plugin-config": &s.config.PluginConfig, "guid-file": &s.config.GUIDFile,
	} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	if s.own, err = parsePod(s.pod); err != nil {
		return err
	}
	if s.podResources != "" && !filepath.IsAbs(s.podResources) {
		return fmt.Errorf("--pod-resources-socket %q is not an absolute path", s.podResources)
	}
	for _, kind := range r.Accept {
		if !slices.Contains(plan.Kinds(), kind) {
			return fmt.Errorf("--accept %q is not one of %s", kind, strings.Join(plan.Kinds(), ", "))
		}
	}
	switch {
	case r.Lease != 0 && (r.Lease < control.MinLease || r.Lease > control.MaxLease):
		return fmt.Errorf("--lease %s is not 0 or from %s to %s", r.Lease, control.MinLease, control.MaxLease)
	case r.Hold < 0 || r.Hold > control.MaxHold:
		return fmt.Errorf("--hold %s is not from 0 to %s", r.Hold, control.MaxHold)
	case r.Resync < time.Second:
		return fmt.Errorf("--resync %s is below the minimum of 1s", r.Resync)
	case r.Settle < 0 || r.Settle > time.Hour:
		return fmt.Errorf("--settle %s is not from 0 to 1h", r.Settle)
	case r.Unacknowledged <= 0 || r.Unacknowledged > time.Hour:
		return fmt.Errorf("--unacknowledged-wait %s is not above 0 and at most 1h", r.Unacknowledged)
	}
	return nil
}

// Assemble implements server.Program.
func (s *sriovDaemonServer) Assemble(ctx context.Context) error {
	if s.dryRun {
		return s.preview(ctx)
	}
	s.AddState(s.open)
	s.Add(server.Part{Name: "config daemon", Prepare: s.create})
	s.AddTelemetry()
	// The daemon stops first: a running step ends before the stream closes.
	s.Add(server.Part{Name: "control stream", Run: func(ctx context.Context) error { return s.renewer.Run(ctx) }})
	s.Add(server.Part{Name: "daemon", Run: func(ctx context.Context) error { return s.daemon.Run(ctx) }})
	return nil
}

const sriovDaemonRecord = "sriov-daemon.db"

func (s *sriovDaemonServer) open(ctx context.Context) (err error) {
	s.config.Store, err = s.OpenStore(ctx, sriovDaemonRecord, store.Options{Role: daemon.Role, Version: daemon.Version, Preallocate: 1 << 20})
	return err
}

// create creates the daemon, which Run starts.
func (s *sriovDaemonServer) create(context.Context) (err error) {
	c := &s.config
	if s.renewer, err = control.NewRenewer(control.RenewerConfig{Socket: s.controlSocket, Logger: s.Logger, Metrics: s.Metrics}); err != nil {
		return fmt.Errorf("--control-socket: %w", err)
	}
	c.Gate, c.Logger, c.Metrics = s.renewer, s.Logger, s.Metrics
	c.Watch = func(ctx context.Context, changed func()) error {
		return inventory.Watch(ctx, inventory.WatchConfig{Warn: func(err error) {
			s.Logger.Warn("function watch failed, changes are found at the next resync", "err", err)
		}}, changed)
	}
	if err := s.openMachine(s.Logger); err != nil {
		return err
	}
	if s.daemon, err = daemon.New(*c); err != nil {
		return err
	}
	s.Check("sriov", s.daemon.Check)
	s.Status("sriov", func(context.Context) (any, error) { return s.daemon.Status(), nil })
	return nil
}

// openMachine adds functions, pods and node state. Progress is reported in a
// node state that is an object.
func (s *sriovDaemonServer) openMachine(logger *slog.Logger) error {
	c := &s.config
	if s.podResources != "" {
		pods := podresources.NewInPod(s.podResources, s.own)
		s.OnClose(func(context.Context) error { return pods.Close() })
		c.Pods = pods
	}
	machine := host.New(s.machine)
	s.OnClose(machine.Close)
	c.Host = machine
	if s.nodeState != "" {
		c.Source = source.NewFile(s.nodeState, logger)
		return nil
	}
	s.cluster.Node, s.cluster.UserAgent, s.cluster.Logger = c.Rules.Node, "cleat-sriov-daemon/"+release, logger
	cluster, err := source.NewCluster(s.cluster)
	if err != nil {
		return fmt.Errorf("%w (use --node-state for a file)", err)
	}
	c.Source = cluster
	if c.Rules.Mode == daemon.Apply && s.writeStatus {
		c.Report = cluster.UpdateStatus
	}
	return nil
}

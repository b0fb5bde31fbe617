package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
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
	own           podresources.Pod // pod parsed
	machine       host.Config      // besides Sysfs zero: this machine
	dryRun        bool
	output        cli.Format

	renewer *control.Renewer
	daemon  *daemon.Daemon
}

// newSriovDaemonCommand makes the command for a machine; nil is this one.
func newSriovDaemonCommand(machine *host.Config) *cobra.Command {
	s := &sriovDaemonServer{output: cli.FormatTable}
	if machine != nil {
		s.machine = *machine
	}
	return serving(&cobra.Command{
		Use:   "daemon",
		Short: "Answer for SR-IOV functions: configure them, or follow who does",
		Long: `Lets the device plugin of this node (cleat sriov plugin --controlled-mode) offer
its devices only while the functions are in the state that the node's
SriovNetworkNodeState specifies, and withdraws them before they change.

  --mode apply    configures functions: their number, drivers, MAC addresses and
                  GUIDs, MTU, trust and spoof check, vDPA. Functions that pods
                  hold are not changed, unless with --force: the plan then waits
                  until the pods are gone, and the node offers nothing meanwhile.
  --mode follow   leaves that to the daemon of the SR-IOV network operator. Devices
                  are withdrawn with any change of the node state, and offered
                  again when its status is Succeeded and nothing on the node
                  differs from it.

The node state is a file (--node-state, YAML or JSON, watched), or an object of the
API server: as a pod finds it, or by --kubeconfig. Progress is on record in
--state-dir: a restart continues the work, and offers at once what is done.

For a plugin without cleat's extensions of the contract, closing the stream is the
withdrawal, which the kubelet then confirms. A plugin without a control socket
cannot withdraw: the daemon logs that and goes on, as the operator's does. Without
a kubelet it is not known which pods hold functions, and none that exists is
changed. On a machine without one give an empty --pod-resources-socket.

--dry-run prints the plan and changes nothing.`,
		Example: `  cleat sriov daemon --mode follow
  cleat sriov daemon --mode apply --node-state /etc/cleat/node-state.yaml
  cleat sriov daemon --mode apply --node-state node-state.yaml --dry-run`,
		Args: exactlyNone,
	}, s)
}

func (s *sriovDaemonServer) addFlags(fs *pflag.FlagSet) {
	hostname, _ := os.Hostname() // without one --node must be given
	c, r := &s.config, &s.config.Rules
	fs.StringVar(&s.mode, "mode", string(daemon.Follow), "who configures functions: apply (this daemon) or follow (the operator's)")
	fs.StringVar(&s.nodeState, "node-state", "", "file with the SriovNetworkNodeState; empty: it is an object of the API server")
	fs.StringVar(&s.cluster.Kubeconfig, "kubeconfig", "", "file that says where the API server is; empty: as a pod finds it")
	fs.StringVar(&s.cluster.Namespace, "namespace", "", "of the object; by default the pod's own, else "+source.DefaultNamespace)
	fs.StringVar(&r.Node, "node", strings.ToLower(hostname), "name of this node, and of the object")
	fs.BoolVar(&s.writeStatus, "write-status", true, "with --mode apply, write what was found and the progress into the object's status")
	fs.StringVar(&s.controlSocket, "control-socket", sriovControlSocket, "UNIX socket of the plugin")
	fs.StringVar(&c.GUIDFile, "guid-file", sriovGUIDFile, "the operator's file of static InfiniBand GUIDs; it need not be there")
	fs.StringVar(&c.PluginConfig, "plugin-config", "", "the plugin's config.json: devices are offered only while the plugin has read the same; empty: whatever it has")
	fs.StringVar(&s.podResources, "pod-resources-socket", podresources.DefaultSocket, "socket on which the kubelet reports which pod has which device; empty: there is no kubelet, and no pod holds a function")
	fs.StringVar(&s.pod, "pod", "", "the pod that this process is in, NAMESPACE/NAME: while the kubelet does not list it, the kubelet has just started, and what it reports of pods does not count")
	fs.StringVar(&s.machine.Sysfs, "sysfs-root", "/sys", "where sysfs is mounted")
	fs.DurationVar(&r.Lease, "lease", 30*time.Second, "the plugin withdraws its devices after so long without a heartbeat of this daemon, though the stream is open; 0: never")
	fs.DurationVar(&r.Hold, "hold", 0, "devices stay offered for so long when this daemon is lost, as during its upgrade; 0: they are withdrawn at once")
	fs.DurationVar(&r.Resync, "resync", 5*time.Minute, "how often the node is read though no change was seen")
	fs.DurationVar(&r.Settle, "settle", 0, "how long to wait between the withdrawal and the first step, until the scheduler knows of it: it binds pods for some 10 s more, which then fail to start")
	fs.DurationVar(&r.Unacknowledged, "unacknowledged-wait", 10*time.Second, "how long a plugin that cannot acknowledge may take to withdraw")
	fs.BoolVar(&r.Force, "force", false, "touch functions also when pods hold them, or when this is not known")
	fs.BoolVar(&s.dryRun, "dry-run", false, "print what would be done, and end")
	fs.VarP(&s.output, "output", "o", "with --dry-run: table, json or yaml")
	s.AddFlags(fs, server.Defaults{StateDir: sriovDaemonState, Env: map[string]string{"node": "NODE_NAME"}}) // as the operator's daemon has it
}

// Complete derives settings from others, and refuses those that cannot work.
func (s *sriovDaemonServer) Complete() (err error) {
	r := &s.config.Rules
	if r.Mode, err = daemon.ParseMode(s.mode); err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	if s.nodeState != "" && s.cluster.Kubeconfig != "" {
		return fmt.Errorf("--node-state %q and --kubeconfig %q: the node state is a file or an object; give one of them", s.nodeState, s.cluster.Kubeconfig)
	}
	if r.Node == "" && s.nodeState == "" {
		return fmt.Errorf("this machine has no name: give --node, the name of its object")
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
	switch {
	case r.Lease != 0 && (r.Lease < control.MinLease || r.Lease > control.MaxLease):
		return fmt.Errorf("--lease %s: want 0, or %s to %s", r.Lease, control.MinLease, control.MaxLease)
	case r.Hold < 0 || r.Hold > control.MaxHold:
		return fmt.Errorf("--hold %s: want 0 to %s", r.Hold, control.MaxHold)
	case r.Resync < time.Second:
		return fmt.Errorf("--resync %s: want 1s at least", r.Resync)
	case r.Settle < 0 || r.Settle > time.Hour:
		return fmt.Errorf("--settle %s: want 0 to 1h", r.Settle)
	case r.Unacknowledged <= 0 || r.Unacknowledged > time.Hour:
		return fmt.Errorf("--unacknowledged-wait %s: want a time above 0, at most 1h", r.Unacknowledged)
	}
	return nil
}

// Assemble implements server.Program.
func (s *sriovDaemonServer) Assemble(ctx context.Context) error {
	if s.dryRun {
		return s.preview(ctx)
	}
	s.AddState(s.open)
	s.AddTelemetry()
	// The daemon stops first: a step that runs ends before the stream closes.
	s.Add(server.Part{Name: "control stream", Run: func(ctx context.Context) error { return s.renewer.Run(ctx) }})
	s.Add(server.Part{Name: "daemon", Run: func(ctx context.Context) error { return s.daemon.Run(ctx) }})
	return nil
}

const sriovDaemonRecord = "sriov-daemon.db"

// open makes the daemon, which does nothing until it runs.
func (s *sriovDaemonServer) open(ctx context.Context) (err error) {
	c := &s.config
	if c.Store, err = s.OpenStore(ctx, sriovDaemonRecord, store.Options{Role: daemon.Role, Version: daemon.Version, Preallocate: 1 << 20}); err != nil {
		return err
	}
	if s.renewer, err = control.NewRenewer(control.RenewerConfig{Socket: s.controlSocket, Logger: s.Logger, Metrics: s.Metrics}); err != nil {
		return fmt.Errorf("--control-socket: %w", err)
	}
	c.Gate, c.Logger, c.Metrics = s.renewer, s.Logger, s.Metrics
	c.Watch = func(ctx context.Context, changed func()) error {
		return inventory.Watch(ctx, inventory.WatchConfig{Warn: func(err error) {
			s.Logger.Warn("changes of functions may go unseen until the next look", "error", err)
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

// openMachine adds functions, pods and node state to the config. What becomes of a
// node state that is an object is reported in its status.
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
		return fmt.Errorf("%w (a file is given by --node-state)", err)
	}
	c.Source = cluster
	if c.Rules.Mode == daemon.Apply && s.writeStatus {
		c.Report = cluster.UpdateStatus
	}
	return nil
}

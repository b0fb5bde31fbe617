package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Where the upstream plugin, the kubelet, Multus and container runtimes look.
const (
	sriovControlSocket = "/var/lib/sriov/sriovdp-control.sock"
	sriovPluginState   = "/var/lib/cleat/sriov-plugin"
	sriovGUIDFile      = "/etc/sriov-operator/infiniband/guids"
	kubeletDir         = "/var/lib/kubelet"
	deviceInfoDir      = "/var/run/k8s.cni.cncf.io/devinfo/dp"
	cdiDir             = "/var/run/cdi"
)

// Ways to register with the kubelet.
const (
	registerAuto    = "auto"
	registerCall    = "register"
	registerWatcher = "watcher"
)

// sriovPluginFlags are the settings of cleat sriov plugin.
type sriovPluginFlags struct {
	config          string
	configFile      string
	prefix          string
	strict          bool
	useCDI          bool
	controlled      bool
	controlSocket   string
	allowUIDs       []uint
	withdrawWithin  time.Duration
	sysfsRoot       string
	devRoot         string
	kubeletDir      string
	registrationDir string
	registration    string
	podResources    string
	pod             string
	own             podresources.Pod
	stateDir        string
	deviceInfoDir   string
	cdiDir          string
	linkHealth      bool
	rescan          time.Duration
	metricsAddress  string
	logFormat       string
	logLevel        string
	upstream        upstreamLogFlags
}

// upstreamLogFlags are what the upstream plugin takes for its log, so that its
// manifests need no change. They have no effect.
type upstreamLogFlags struct {
	dir, link, level, backtrace, stderrThreshold, vmodule, v string
	toStderr, alsoToStderr                                   bool
}

func newSriovPluginCommand() *cobra.Command {
	var f sriovPluginFlags
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Offer SR-IOV functions to the kubelet as devices",
		Long: `Is the device plugin of a node for SR-IOV functions, accelerators and scalable
functions, in the place of the SR-IOV network device plugin: with its config.json,
its flags, and the environment variables, device nodes and files that its
workloads know.

The configuration is read again when it changes, and the machine when functions
come, go, or change their driver; the kubelet is told of the difference. Devices
that pods have stay theirs meanwhile.

With --controlled-mode nothing is offered until a config daemon (cleat sriov
daemon, or another that speaks sriovdp.control.v1) holds a stream open on
--control-socket, and everything is taken back when it closes: Allocate is refused
first, calls that run are waited for, then the kubelet is told that no device is
healthy. The registration stays, since a plugin that ends and comes back is a race
that kubelets lose.

Every flag can also be given in the environment (--state-dir as CLEAT_STATE_DIR)
and in a YAML file (--config) whose keys are the names of the flags. A flag wins
over the environment, and the environment over the file. SIGHUP reads the
configuration and the machine again.`,
		Example: `  cleat sriov plugin --config-file /etc/pcidp/config.json
  cleat sriov plugin --resource-prefix example.com --use-cdi
  cleat sriov plugin --controlled-mode --metrics-address :9808`,
		Args: exactlyNone,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(cmd.Flags(), cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		return serveSriovPlugin(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return c
}

func (f *sriovPluginFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	fs.StringVar(&f.configFile, "config-file", sriovConfigFile, "which functions are offered as what: the config.json of the upstream plugin")
	fs.StringVar(&f.prefix, "resource-prefix", config.DefaultPrefix, "prefix of resources that name none")
	fs.BoolVar(&f.strict, "strict-config", false, "refuse a configuration with an unknown key, or with anything else that is probably a mistake")
	fs.BoolVar(&f.useCDI, "use-cdi", false, "devices go into containers by CDI")
	fs.BoolVar(&f.controlled, "controlled-mode", false, "offer nothing unless a config daemon holds a stream on --control-socket")
	fs.StringVar(&f.controlSocket, "control-socket", sriovControlSocket, "UNIX socket for the config daemon, in a directory of its own; served with --controlled-mode")
	fs.UintSliceVar(&f.allowUIDs, "allow-uid", nil, "these users may control beside root")
	fs.DurationVar(&f.withdrawWithin, "withdraw-within", 10*time.Second, "how long a withdrawal may take before whoever waits for it is told that it goes on")
	fs.StringVar(&f.sysfsRoot, "sysfs-root", "/sys", "where sysfs is mounted")
	fs.StringVar(&f.devRoot, "dev-root", "/dev", "where the machine's device nodes are")
	fs.StringVar(&f.kubeletDir, "kubelet-dir", kubeletDir, "the kubelet's directory")
	fs.StringVar(&f.registrationDir, "registration-dir", "", "directory that the kubelet watches for plugins; by default plugins_registry of --kubelet-dir")
	fs.StringVar(&f.registration, "registration", registerAuto, "how the kubelet hears of resources: register (a call), watcher (a socket in --registration-dir), or auto: by the watcher if its directory is there and can be written")
	fs.StringVar(&f.podResources, "pod-resources-socket", "", "socket on which the kubelet tells which pod has which device; by default pod-resources/kubelet.sock of --kubelet-dir. It need not be there")
	fs.StringVar(&f.pod, "pod", "", "the pod that this process is in, NAMESPACE/NAME: while the kubelet does not list it, the kubelet has just started, and what it says of pods does not count")
	fs.StringVar(&f.stateDir, "state-dir", sriovPluginState, "directory for what this process must remember: the devices that it gave out")
	fs.StringVar(&f.deviceInfoDir, "device-info-dir", deviceInfoDir, "where Multus looks for files about devices")
	fs.StringVar(&f.cdiDir, "cdi-dir", cdiDir, "where container runtimes look for CDI specifications")
	fs.BoolVar(&f.linkHealth, "link-health", false, "a function whose PF has no link is unhealthy")
	fs.DurationVar(&f.rescan, "rescan-interval", time.Minute, "how often the machine and the configuration are looked at though nothing is heard of a change")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "json", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; a number, as the upstream image takes, is info")
	f.upstream.add(fs)
	cli.DescribeEnv(fs)
}

func (u *upstreamLogFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&u.dir, "log-dir", "", "no effect: the log goes to standard error")
	fs.StringVar(&u.dir, "log_dir", "", "no effect")
	fs.StringVar(&u.link, "log_link", "", "no effect")
	fs.StringVar(&u.level, "logbuflevel", "", "no effect")
	fs.BoolVar(&u.toStderr, "logtostderr", true, "no effect")
	fs.BoolVar(&u.alsoToStderr, "alsologtostderr", true, "no effect")
	fs.StringVar(&u.stderrThreshold, "stderrthreshold", "", "no effect")
	fs.StringVar(&u.vmodule, "vmodule", "", "no effect")
	fs.StringVar(&u.backtrace, "log_backtrace_at", "", "no effect")
	fs.StringVarP(&u.v, "v", "v", "", "no effect: see --log-level")
	for _, name := range []string{"log-dir", "log_dir", "log_link", "logbuflevel", "logtostderr", "alsologtostderr", "stderrthreshold", "vmodule", "log_backtrace_at", "v"} {
		cobra.CheckErr(fs.MarkHidden(name))
	}
}

// upstreamArgs rewrites a command line of cleat sriov plugin as Go's package flag
// takes it, which the upstream plugin uses: long flags may have one dash. Those
// of other commands, and what is no flag of this one, stay as they are.
func upstreamArgs(args []string) []string {
	if len(args) < 2 || args[0] != "sriov" || args[1] != "plugin" {
		return args
	}
	c := newSriovPluginCommand()
	c.InitDefaultHelpFlag()
	out := slices.Clone(args)
	for i := 2; i < len(out) && out[i] != "--"; i++ {
		name, _, valued := strings.Cut(strings.TrimLeft(out[i], "-"), "=")
		f := c.Flags().Lookup(name)
		if f == nil || !strings.HasPrefix(out[i], "-") {
			continue
		}
		if len(name) > 1 && !strings.HasPrefix(out[i], "--") {
			out[i] = "-" + out[i]
		}
		if !valued && f.NoOptDefVal == "" {
			i++ // the next one is its value
		}
	}
	return out
}

// complete fills in what follows from other settings, and refuses what cannot
// work.
func (f *sriovPluginFlags) complete() (err error) {
	if f.own, err = parsePod(f.pod); err != nil {
		return err
	}
	if f.configFile, err = filepath.Abs(f.configFile); err != nil { // upstream's may be relative
		return fmt.Errorf("--config-file: %w", err)
	}
	if !filepath.IsAbs(f.kubeletDir) {
		return fmt.Errorf("--kubelet-dir %q is not an absolute path", f.kubeletDir)
	}
	f.registrationDir = cmp.Or(f.registrationDir, filepath.Join(f.kubeletDir, "plugins_registry"))
	f.podResources = cmp.Or(f.podResources, filepath.Join(f.kubeletDir, "pod-resources", "kubelet.sock"))
	for flag, path := range map[string]string{
		"control-socket": f.controlSocket, "sysfs-root": f.sysfsRoot, "dev-root": f.devRoot,
		"registration-dir": f.registrationDir, "pod-resources-socket": f.podResources, "state-dir": f.stateDir,
		"device-info-dir": f.deviceInfoDir, "cdi-dir": f.cdiDir,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q is not an absolute path", flag, path)
		}
	}
	if _, err := strconv.Atoi(f.logLevel); err == nil {
		f.logLevel = "info"
	}
	if f.rescan <= 0 || f.withdrawWithin <= 0 {
		return fmt.Errorf("--rescan-interval %s, --withdraw-within %s: times above 0 are needed", f.rescan, f.withdrawWithin)
	}
	switch f.registration {
	case registerCall, registerWatcher:
	case registerAuto:
		f.registration = registerCall
		if err := unix.Access(f.registrationDir, unix.W_OK|unix.X_OK); err == nil {
			f.registration = registerWatcher
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("--registration-dir %s: %w", f.registrationDir, err)
		}
	default:
		return fmt.Errorf("--registration %q: %s, %s or %s", f.registration, registerAuto, registerCall, registerWatcher)
	}
	return nil
}

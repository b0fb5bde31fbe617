package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/inventory"
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

func newSriovPluginCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "plugin",
		Short: "Offer SR-IOV functions to the kubelet as devices",
		Long: `Replaces the SR-IOV network device plugin on a node, for SR-IOV functions,
accelerators and scalable functions: with its config.json, its flags, and the
environment variables, device nodes and files that workloads expect.

It reads the configuration again when it changes (or at SIGHUP), and the machine
when functions come, go, or change their driver, and reports the difference to the
kubelet. Pods keep the devices that they have.

With --controlled-mode nothing is offered until a config daemon (cleat sriov
daemon, or another that speaks sriovdp.control.v1) holds a stream open on
--control-socket. When it closes, Allocate is refused, running calls end, and then
all devices are reported unhealthy. The registration stays: a plugin that restarts
is a race that kubelets lose.`,
		Example: `  cleat sriov plugin --config-file /etc/pcidp/config.json
  cleat sriov plugin --resource-prefix example.com --use-cdi
  cleat sriov plugin --controlled-mode --metrics-address :9808`,
		Args: exactlyNone,
	}, &sriovPluginServer{})
}

func (s *sriovPluginServer) addFlags(fs *pflag.FlagSet) {
	c := &s.config
	fs.StringVar(&c.ConfigFile, "config-file", sriovConfigFile, "which functions are offered as what: the config.json of the upstream plugin")
	fs.StringVar(&c.Prefix, "resource-prefix", inventory.DefaultPrefix, "prefix of resources that name none")
	fs.BoolVar(&c.Strict, "strict-config", false, "refuse a configuration with an unknown key, or with anything else that is probably a mistake")
	fs.BoolVar(&c.CDI, "use-cdi", false, "devices go into containers by CDI")
	fs.BoolVar(&c.Controlled, "controlled-mode", false, "offer nothing unless a config daemon holds a stream on --control-socket")
	fs.StringVar(&s.controlSocket, "control-socket", sriovControlSocket, "UNIX socket for the config daemon, in a directory of its own; served with --controlled-mode")
	s.AddAllowUIDs(fs, "allow-uid", "these users may control besides root")
	fs.DurationVar(&c.Bound, "withdraw-within", 10*time.Second, "how long a withdrawal may take before its caller is answered that it goes on")
	fs.StringVar(&c.Discovery.Sysfs, "sysfs-root", "/sys", "where sysfs is mounted")
	fs.StringVar(&c.Discovery.Dev, "dev-root", "/dev", "where the machine's device nodes are")
	fs.StringVar(&s.kubeletDir, "kubelet-dir", kubeletDir, "the kubelet's directory")
	fs.StringVar(&s.registrationDir, "registration-dir", "", "directory that the kubelet watches for plugins; by default plugins_registry of --kubelet-dir")
	fs.StringVar(&s.registration, "registration", registerAuto, "how resources are registered with the kubelet: register (a call), watcher (a socket in --registration-dir), or auto: by the watcher if its directory is there and can be written")
	fs.StringVar(&s.podResources, "pod-resources-socket", "", "socket on which the kubelet reports which pod has which device; by default pod-resources/kubelet.sock of --kubelet-dir. It need not be there")
	fs.StringVar(&s.pod, "pod", "", "the pod that this process is in, NAMESPACE/NAME: while the kubelet does not list it, the kubelet has just started, and what it reports of pods does not count")
	fs.StringVar(&c.Files.DeviceInfo, "device-info-dir", deviceInfoDir, "where Multus looks for files about devices")
	fs.StringVar(&c.Files.CDI, "cdi-dir", cdiDir, "where container runtimes look for CDI specifications")
	fs.BoolVar(&c.LinkHealth, "link-health", false, "a function whose PF has no link is unhealthy")
	fs.DurationVar(&c.Interval, "rescan-interval", time.Minute, "how often the machine and the configuration are read though no change was seen")
	addUpstreamLogFlags(fs)
	s.AddFlags(fs, server.Defaults{StateDir: sriovPluginState})
}

// addUpstreamLogFlags declares what the upstream plugin takes for its log, so that
// its manifests need no change. The flags have no effect.
func addUpstreamLogFlags(fs *pflag.FlagSet) {
	const none = "no effect: see --log-level; the log goes to standard error"
	names := []string{"log-dir", "log_dir", "log_link", "logbuflevel", "stderrthreshold", "vmodule", "log_backtrace_at"}
	for _, name := range names {
		fs.String(name, "", none)
	}
	fs.Bool("logtostderr", true, none)
	fs.Bool("alsologtostderr", true, none)
	fs.StringP("v", "v", "", none)
	for _, name := range append(names, "logtostderr", "alsologtostderr", "v") {
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

// Complete derives settings from others, and refuses those that cannot work.
func (s *sriovPluginServer) Complete() (err error) {
	if s.own, err = parsePod(s.pod); err != nil {
		return err
	}
	c := &s.config
	if c.ConfigFile, err = filepath.Abs(c.ConfigFile); err != nil { // upstream's may be relative
		return fmt.Errorf("--config-file: %w", err)
	}
	if !filepath.IsAbs(s.kubeletDir) {
		return fmt.Errorf("--kubelet-dir %q is not an absolute path", s.kubeletDir)
	}
	s.registrationDir = cmp.Or(s.registrationDir, filepath.Join(s.kubeletDir, "plugins_registry"))
	s.podResources = cmp.Or(s.podResources, filepath.Join(s.kubeletDir, "pod-resources", "kubelet.sock"))
	for flag, path := range map[string]string{
		"control-socket": s.controlSocket, "sysfs-root": c.Discovery.Sysfs, "dev-root": c.Discovery.Dev,
		"registration-dir": s.registrationDir, "pod-resources-socket": s.podResources, "state-dir": s.StateDir,
		"device-info-dir": c.Files.DeviceInfo, "cdi-dir": c.Files.CDI,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q is not an absolute path", flag, path)
		}
	}
	if _, err := strconv.Atoi(s.LogLevel); err == nil { // as the upstream image passes it
		s.LogLevel = "info"
	}
	if c.Interval <= 0 || c.Bound <= 0 {
		return fmt.Errorf("--rescan-interval %s, --withdraw-within %s: times above 0 are needed", c.Interval, c.Bound)
	}
	switch s.registration {
	case registerCall, registerWatcher:
	case registerAuto:
		s.registration = registerCall
		if err := unix.Access(s.registrationDir, unix.W_OK|unix.X_OK); err == nil {
			s.registration = registerWatcher
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("--registration-dir %s: %w", s.registrationDir, err)
		}
	default:
		return fmt.Errorf("--registration %q: %s, %s or %s", s.registration, registerAuto, registerCall, registerWatcher)
	}
	return nil
}

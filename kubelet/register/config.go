package register

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// The plugin types that a kubelet registers. Other hosts can handle more.
const (
	CSI    = registration.CSIPlugin
	Device = registration.DevicePlugin
	DRA    = registration.DRAPlugin
)

// Plugin is the description of a plugin, as the registrar reports it in
// GetInfo.
type Plugin struct {
	Type string `json:"type"`
	// Name is the name of a driver, or the resource of a device plugin
	// (vendor.com/resource).
	Name string `json:"name"`
	// Endpoint is the socket that serves the plugin's own API, as an absolute
	// path on the host. In a container it can differ from the path that the
	// plugin binds.
	Endpoint string `json:"endpoint"`
	// Versions are the supported versions of that API: "1.0.0" for a CSI
	// driver, as every registrar reports whatever 1.x it serves, "v1beta1" for
	// a device plugin, the service names for a DRA driver. A kubelet lets a CSI
	// driver with a higher version replace a live driver of the same name, and
	// deregisters both when the older one ends.
	Versions []string `json:"versions"`
}

// Config configures a Registrar.
type Config struct {
	Plugin Plugin
	// Dir is the host's directory for registration sockets as seen by this
	// process: for a kubelet, plugins_registry below its root directory.
	Dir string
	// UID is the UID of the pod. Set it for a DRA driver of which two instances
	// can run during an update.
	UID string

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // for gRPC calls; nil: no metrics
	// Silence is how long no host calls GetInfo before the state is Silent;
	// zero is 30 s. A kubelet calls within 2 s, or within 2 min if a dead
	// socket was at the path before.
	Silence time.Duration
	// Every is the interval at which the socket is checked in addition to
	// inotify events; zero is 2 s.
	Every time.Duration
	// OnResult is called with each NotifyRegistrationStatus of the host for the
	// current socket: whether it registered the plugin, and its error. It must
	// not block. It can be nil.
	OnResult func(registered bool, text string)
}

var (
	versionOne   = regexp.MustCompile(`^v?1(\.[0-9]+)+$`)
	resourceName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	fileName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	podUID       = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
)

// check refuses settings that no host could register, before anything is
// created. It returns the path of the socket.
func (c Config) check() (socket string, err error) {
	if err := c.Plugin.check(); err != nil {
		return "", err
	}
	if c.UID != "" && c.Plugin.Type != DRA {
		return "", fmt.Errorf("a pod UID is allowed for a %s only: a kubelet identifies a %s by name, so the end of one instance would deregister its successor; run one instance per node", DRA, c.Plugin.Type)
	}
	if c.UID != "" && !podUID.MatchString(c.UID) {
		return "", fmt.Errorf("the pod UID %q must consist of letters, digits and dashes", c.UID)
	}
	if !filepath.IsAbs(c.Dir) || strings.ContainsRune(c.Dir, 0) {
		return "", fmt.Errorf("the directory %q is not an absolute path, such as /var/lib/kubelet/plugins_registry", c.Dir)
	}
	dir := filepath.Clean(c.Dir)
	socket = filepath.Join(dir, c.socketName())
	if over := len(socket) - unixsock.MaxPath; over > 0 {
		return "", fmt.Errorf("%w: a kubelet cannot connect to %s: %d bytes, at most %d are possible; shorten the directory (%d bytes) or the name (%d bytes) by %d",
			unixsock.ErrTooLong, socket, len(socket), unixsock.MaxPath, len(dir), len(c.Plugin.Name), over)
	}
	return socket, nil
}

// socketName follows the convention of registrars: driver-reg.sock. The slash
// of a resource becomes an underscore, which a domain name cannot contain.
func (c Config) socketName() string {
	name := strings.ReplaceAll(c.Plugin.Name, "/", "_")
	if c.UID != "" {
		name += "-" + c.UID
	}
	return name + "-reg.sock"
}

func (p Plugin) check() error {
	if p.Type == "" {
		return fmt.Errorf("the plugin has no type; it must be %s, %s, %s, or another type that the host handles", CSI, Device, DRA)
	}
	if err := p.checkName(); err != nil {
		return err
	}
	if err := p.checkEndpoint(); err != nil {
		return err
	}
	return p.checkVersions()
}

func (p Plugin) checkName() error {
	switch {
	case p.Type == Device && !resourceName.MatchString(p.Name):
		return fmt.Errorf("%q is not a resource name, such as vendor.com/device", p.Name)
	case p.Type != Device && !fileName.MatchString(p.Name):
		return fmt.Errorf("the plugin's name %q cannot be used for a socket: it must consist of letters, digits, dots, dashes and underscores, and not begin with a dot or dash", p.Name)
	}
	return nil
}

func (p Plugin) checkEndpoint() error {
	if !filepath.IsAbs(p.Endpoint) {
		return fmt.Errorf("the endpoint %q is not an absolute path; a kubelet needs a path without a scheme, such as /run/cleat/csi/csi.sock", p.Endpoint)
	}
	if _, err := unixsock.ParseEndpoint(p.Endpoint); err != nil {
		return err
	}
	if len(p.Endpoint) > unixsock.MaxPath {
		return fmt.Errorf("%w: a kubelet cannot connect to the endpoint %s: %d bytes, at most %d are possible", unixsock.ErrTooLong, p.Endpoint, len(p.Endpoint), unixsock.MaxPath)
	}
	return nil
}

// checkVersions applies the kubelet's rules for versions.
func (p Plugin) checkVersions() error {
	switch {
	case len(p.Versions) == 0 || slices.Contains(p.Versions, ""):
		return errors.New("the plugin has no supported versions, or an empty one")
	case p.Type == CSI && !slices.ContainsFunc(p.Versions, versionOne.MatchString):
		return fmt.Errorf("a %s needs a version 1.x, such as 1.0.0; got %q", CSI, p.Versions)
	case p.Type == Device && !slices.Contains(p.Versions, "v1beta1"):
		return fmt.Errorf("a %s needs the version v1beta1; got %q", Device, p.Versions)
	}
	return nil
}

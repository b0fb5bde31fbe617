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

// The kubelet's plugin types; other hosts can handle more.
const (
	CSI    = registration.CSIPlugin
	Device = registration.DevicePlugin
	DRA    = registration.DRAPlugin
)

// Plugin describes a plugin in GetInfo.
type Plugin struct {
	Type string `json:"type"`
	// Driver name, or resource of a device plugin (vendor.com/resource).
	Name string `json:"name"`
	// Absolute path on the host of the plugin's own API. In a container the
	// plugin can bind another path.
	Endpoint string `json:"endpoint"`
	// Supported versions of that API: "1.0.0" for a CSI driver (as every
	// registrar reports for 1.x), "v1beta1" for a device plugin, the service
	// names for a DRA driver. A kubelet lets a CSI driver with a higher version
	// replace a live one of the same name, and deregisters both when the older
	// ends.
	Versions []string `json:"versions"`
}

// Config configures a Registrar.
type Config struct {
	Plugin Plugin
	// The host's directory for sockets as this process sees it: a kubelet's
	// plugins_registry.
	Dir string
	// UID of the pod, for a DRA driver with two instances during an update.
	UID string

	Logger  *slog.Logger
	Metrics prometheus.Registerer // of gRPC calls
	// Time without GetInfo until Silent; zero is 30 s. A kubelet calls within 2
	// s, or 2 min after a dead socket at the path.
	Silence time.Duration
	// Check interval in addition to inotify; zero is 2 s.
	Every time.Duration
	// OnResult gets each NotifyRegistrationStatus for the current socket. It
	// must not block.
	OnResult func(registered bool, text string)
}

var (
	versionOne   = regexp.MustCompile(`^v?1(\.[0-9]+)+$`)
	resourceName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	fileName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	podUID       = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
)

// check refuses what no host could register. It returns the path of the socket.
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

// The convention of registrars is driver-reg.sock. A slash becomes an
// underscore, which a domain name cannot contain.
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

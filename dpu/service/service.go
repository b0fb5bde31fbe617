// Package service serves nvidia.storage.plugins.v1, the contract between DPF
// and a storage vendor's plugin. Package plugin implements the calls.
package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
)

// Devices implements the device calls; see plugin.Plugin.
type Devices interface {
	Create(ctx context.Context, q request.Create) (deviceName string, err error)
	Delete(ctx context.Context, d request.Device) error
	Get(ctx context.Context, d request.Device) (table.Device, error)
	List(ctx context.Context, p request.Page) (page []table.Device, more bool, err error)
	Ready(ctx context.Context) (bool, error)
	Offer(ctx context.Context) (plugin.Offer, error)
}

// Config configures a Server.
type Config struct {
	Name     string // a domain name of at most 63 characters
	Version  string
	Manifest map[string]string // at least one entry
	// Provider is the directory of the SNAP process below .../snap/providers.
	// Empty: NVIDIA's default process.
	Provider string
	Devices  Devices
}

// Server implements both services. Code maps its errors to gRPC codes.
type Server struct {
	storagev1.UnimplementedIdentityServiceServer
	storagev1.UnimplementedStoragePluginServiceServer
	config Config
}

// label is a domain label of RFC 1035 section 2.3.1.
const label = `[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?`

var namePattern = regexp.MustCompile(`^` + label + `(\.` + label + `)*$`)

const (
	maxName     = 63  // bytes, by the contract
	maxProvider = 255 // bytes of one element of a path
)

// New refuses values that no node driver can use.
func New(c Config) (*Server, error) {
	switch {
	case len(c.Name) > maxName || !namePattern.MatchString(c.Name):
		return nil, fmt.Errorf("invalid plugin name %.80q: the contract requires a domain name of at most %d characters, such as dpu.cleat.dev", c.Name, maxName)
	case c.Version == "":
		return nil, errors.New("no plugin version for GetPluginInfo")
	case len(c.Manifest) == 0:
		return nil, errors.New("no plugin manifest for GetPluginInfo: the contract requires at least one entry")
	case c.Provider == "." || c.Provider == ".." || len(c.Provider) > maxProvider || strings.ContainsAny(c.Provider, "/\x00"):
		return nil, fmt.Errorf("invalid SNAP provider %.80q: it must be a directory name, since the node driver uses the socket .../providers/<name>/snap.sock", c.Provider)
	case c.Devices == nil:
		return nil, errors.New("Devices is required")
	}
	c.Manifest = maps.Clone(c.Manifest)
	return &Server{config: c}, nil
}

// Register adds both services to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	storagev1.RegisterIdentityServiceServer(r, s)
	storagev1.RegisterStoragePluginServiceServer(r, s)
}

// Private returns fields that must not be logged: the contract has no field for
// secrets, so users put them here.
func Private() []protoreflect.FullName {
	create := (&storagev1.CreateDeviceRequest{}).ProtoReflect().Descriptor()
	var all []protoreflect.FullName
	for _, field := range []protoreflect.Name{"publish_context", "volume_context", "storage_parameters"} {
		all = append(all, create.FullName().Append(field))
	}
	return all
}

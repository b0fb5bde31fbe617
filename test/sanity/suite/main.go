// Command suite is csi-sanity with one thing added: it fills the size cache of
// every answer. The suite compares a topology that it has sent with one that
// it has received by reflect.DeepEqual; what was sent carries the size that
// protobuf noted while sending, so that without this the two are never equal
// ("should succeed when creating a snapshot with accessibility requirements",
// csi-test v5.6.0). It is a module of its own so that the suite's dependencies
// never raise the product's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// outcome is what Ginkgo reports to.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func main() {
	config := sanity.NewTestConfig()
	flag.StringVar(&config.Address, "endpoint", "", "node and identity service, as unix:///…")
	flag.StringVar(&config.ControllerAddress, "controllerendpoint", "", "controller service, as unix:///…")
	flag.StringVar(&config.TargetPath, "mountdir", "", "directory that does not exist, for targets")
	flag.StringVar(&config.StagingPath, "stagingdir", "", "directory that does not exist, for staging")
	flag.StringVar(&config.TestVolumeAccessType, "accesstype", "mount", "mount or block")
	flag.Int64Var(&config.TestVolumeSize, "volumesize", 64<<20, "bytes")
	flag.Int64Var(&config.TestVolumeExpandSize, "expandsize", 128<<20, "bytes")
	flag.Parse()
	if config.Address == "" || config.TargetPath == "" || config.StagingPath == "" {
		fmt.Fprintln(os.Stderr, "suite: --endpoint, --mountdir and --stagingdir are needed")
		os.Exit(2)
	}
	config.TestVolumeMutableParameters = map[string]string{"readAheadKiB": "256", "trimInterval": "1h"}
	config.TestNodeVolumeAttachLimit = true
	fill := grpc.WithUnaryInterceptor(fillSizeCache)
	config.DialOptions = append(config.DialOptions, fill)
	config.ControllerDialOptions = append(config.ControllerDialOptions, fill)
	var o outcome
	sanity.Test(&o, config)
	if o.failed {
		os.Exit(1)
	}
}

func fillSizeCache(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, options...)
	if m, ok := reply.(proto.Message); ok && err == nil {
		proto.Size(m)
	}
	return err
}

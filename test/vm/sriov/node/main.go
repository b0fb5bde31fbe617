// Command node simulates the parts of the kubelet that SR-IOV device plugins
// and the config daemon use. It records all device lists and all changes of a
// physical function's virtual functions in order, and serves on a Unix socket:
//
//	GET    /events?from=N                          events from the Nth on
//	POST   /pods?name=NAME&resource=NAME&id=ID...  start a pod with devices
//	DELETE /pods?name=NAME                         end the pod
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
)

func main() {
	dir := flag.String("kubelet-dir", "/var/lib/kubelet", "the kubelet's directory")
	socket := flag.String("socket", "/run/node.sock", "Unix socket to serve on")
	pf := flag.String("pf", "", "PCI address of the physical function")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *dir, *socket, *pf); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, socket, pf string) error {
	book := newBook()
	n := &node{book: book, pods: map[string]pod{}}
	n.kubelet = plugintest.New(filepath.Join(dir, "device-plugins"), func(format string, args ...any) {
		book.add(Event{Broken: fmt.Sprintf(format, args...)})
	})
	if err := n.kubelet.Start(); err != nil {
		return err
	}
	defer n.kubelet.Stop()
	resources := filepath.Join(dir, "pod-resources")
	if err := os.MkdirAll(resources, 0o755); err != nil {
		return err
	}
	grants, err := net.Listen("unix", filepath.Join(resources, "kubelet.sock"))
	if err != nil {
		return err
	}
	rpc := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(rpc, n)
	ended := make(chan error, 3)
	go func() { ended <- rpc.Serve(grants) }()
	defer rpc.Stop()
	w := &watcher{kubelet: n.kubelet, book: book, pf: filepath.Join("/sys/bus/pci/devices", pf), lists: map[string]int{}, live: map[string]bool{}}
	go func() { ended <- w.run(ctx) }()
	questions, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: n.handler()}
	go func() { ended <- web.Serve(questions) }()
	defer web.Close()
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	return err
}

func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		from, err := strconv.Atoi(r.FormValue("from"))
		answer(w, n.book.from(from), err)
	})
	mux.HandleFunc("POST /pods", func(w http.ResponseWriter, r *http.Request) {
		err := r.ParseForm()
		if err == nil && (r.Form.Get("name") == "" || len(r.Form["id"]) == 0) {
			err = errors.New("name and id are required")
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		given, err := n.start(r.Context(), r.Form.Get("name"), r.Form.Get("resource"), r.Form["id"])
		answer(w, given, err)
	})
	mux.HandleFunc("DELETE /pods", func(w http.ResponseWriter, r *http.Request) {
		answer(w, struct{}{}, n.end(r.FormValue("name")))
	})
	return mux
}

func answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_ = json.NewEncoder(w).Encode(value) // fails only if the client disconnected
}

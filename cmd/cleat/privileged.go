package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// listenPrivileged binds a socket on which only root may call, and the users
// that are named: then everybody may connect, and who they are decides.
func listenPrivileged(ctx context.Context, address unixsock.Address, allowed []uint, logger *slog.Logger) (net.Listener, error) {
	var uids []uint32
	for _, uid := range allowed {
		uids = append(uids, uint32(uid))
	}
	if len(uids) > 0 {
		address.Mode, address.DirMode = 0o666, 0o755
	}
	l, err := unixsock.Listen(ctx, address)
	if err != nil {
		return nil, err
	}
	return unixsock.AllowUIDs(l, func(who unixsock.Credentials) {
		logger.Warn("a caller was refused: only root and users that are allowed may", "user", who.UID, "process", who.PID)
	}, uids...), nil
}

// callsMayEnd is how long calls may go on when the process is told to stop.
const callsMayEnd = 5 * time.Second

// drainOrBreakOff takes no more calls and waits for those that run. One that
// waits for somebody else may wait longer than a stop may take: what it does is
// on record, so it is broken off, and its caller told to come again.
func drainOrBreakOff(ctx context.Context, s *server.GRPC, breakOff func(context.Context) error) error {
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	short, cancel := context.WithTimeout(ctx, callsMayEnd)
	defer cancel()
	select {
	case err := <-drained:
		return err
	case <-short.Done():
	}
	return errors.Join(breakOff(ctx), <-drained)
}

package snapshot

import "context"

// LoadThread reads a conversation; an unknown thread has none, at revision 0.
func (s *Service) LoadThread(ctx context.Context, req ThreadRequest) (*LoadThreadReply, error) {
	state, err := s.Checkpoints.State(ctx, req.ThreadID)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, state.Messages)
	if err != nil {
		return nil, err
	}
	return &LoadThreadReply{ThreadID: req.ThreadID, Messages: messages, Revision: state.Revision}, nil
}

// SaveThread replaces the conversation and returns its new revision, which
// counts the saves of this conversation and nothing else.
func (s *Service) SaveThread(ctx context.Context, req SaveThreadRequest) (int64, error) {
	if err := s.noSecret(string(req.ThreadID)); err != nil {
		return 0, err
	}
	state, err := s.Checkpoints.State(ctx, req.ThreadID)
	if err != nil {
		return 0, err
	}
	items := make([][]byte, len(req.Messages))
	for i, m := range req.Messages {
		items[i], _ = s.Redactor.JSON(m)
	}
	list, err := s.Objects.WriteItems(ctx, items, state.Messages)
	if err != nil {
		return 0, err
	}
	return s.Checkpoints.SaveConversation(ctx, req.ThreadID, list, revisionOr(req.ExpectedRevision))
}

// revisionOr is -1, any revision, if none is expected.
func revisionOr(expected *int64) int64 {
	if expected == nil {
		return -1
	}
	return *expected
}

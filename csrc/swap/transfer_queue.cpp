// SPDX-License-Identifier: BSD-3-Clause
#include "swap/transfer_queue.h"

#include <algorithm>

namespace torchlms {

bool TransferQueue::MoreUrgent::operator()(const Link::TransferPtr& a, const Link::TransferPtr& b) const {
  return a->sequence < b->sequence;
}

void TransferQueue::push(const Link::TransferPtr& transfer, Clock::time_point now) {
  List& list = list_of(transfer->cls);
  if (list.transfers.empty()) {
    list.waiting_since = now;
  }
  list.transfers.insert(transfer);
}

void TransferQueue::erase(const Link::TransferPtr& transfer) {
  list_of(transfer->cls).transfers.erase(transfer);
}

void TransferQueue::promote(const Link::TransferPtr& transfer, TransferClass cls, Clock::time_point now) {
  erase(transfer);
  transfer->cls = cls;
  push(transfer, now);
}

bool TransferQueue::empty() const {
  return std::all_of(lists_.begin(), lists_.end(), [](const List& list) { return list.transfers.empty(); });
}

Link::TransferPtr TransferQueue::next(Clock::time_point now) {
  List* list =
      std::find_if(lists_.begin(), lists_.end(), [](const List& each) { return !each.transfers.empty(); });
  List* const aged = turns_since_aged_ < kTurnsBetweenAged ? nullptr : aged_list(list + 1, now);
  if (aged != nullptr) {
    list = aged;
    turns_since_aged_ = 0;
  } else {
    ++turns_since_aged_;
  }
  list->waiting_since = now;
  return *list->transfers.begin();
}

// The list from `first` on that is due a turn and has waited longest, or null.
TransferQueue::List* TransferQueue::aged_list(List* first, Clock::time_point now) {
  List* aged = nullptr;
  for (List* list = first; list != lists_.end(); ++list) {
    const bool overdue = !list->transfers.empty() && now - list->waiting_since >= ageing_;
    if (overdue && (aged == nullptr || list->waiting_since < aged->waiting_since)) {
      aged = list;
    }
  }
  return aged;
}

} // namespace torchlms
